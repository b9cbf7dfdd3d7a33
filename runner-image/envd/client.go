package main

import (
	"archive/tar"
	"encoding/binary"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"
)

// The same file under the name seatrial-env is the client that an agent image uses: it asks the agent's runner in its Pod, over a socket of
// a folder that the environment does not see, to run commands in the environment and to move files.
//
// A connection is one request: a frame with the request as JSON, then frames of streams in both directions. Frame: type, length, bytes.

const (
	defaultDesk = "/seatrial/desk"

	deskRequest = 'r' // client: JSON
	deskInput   = 'i' // client: standard input, or a tar stream
	deskEOF     = 'f' // client: end of it
	deskOut     = 'o' // server: standard output, or a tar stream
	deskErr     = 'e' // server: standard error
	deskKind    = 'k' // server: "file" or "dir", before the tar stream of get
	deskEnd     = 'x' // server: JSON, the last frame

	maxDeskFrame = 1 << 20
	deskPatience = 20 * time.Minute // the environment's image may still be on its way
)

const clientUsage = `usage: seatrial-env exec [-u USER] [-w DIR] [-e NAME=VALUE]... [-t SECONDS] [-i] -- COMMAND [ARGUMENT]...
       seatrial-env exec [options] -c 'SHELL COMMAND'
       seatrial-env put LOCAL REMOTE     a file, or the contents of a folder
       seatrial-env get REMOTE LOCAL
       seatrial-env wait                 return when the environment is ready; all other commands wait too
exec ends with the command's exit code; 125 means that the request itself failed.
`

type deskCall struct {
	Op      string            `json:"op"`
	Argv    []string          `json:"argv,omitempty"`
	Shell   string            `json:"shell,omitempty"`
	Env     map[string]string `json:"env,omitempty"`
	Cwd     string            `json:"cwd,omitempty"`
	User    string            `json:"user,omitempty"`
	Stdin   bool              `json:"stdin,omitempty"`
	Timeout float64           `json:"timeout,omitempty"`
	Path    string            `json:"path,omitempty"`
}

type deskEnding struct {
	Code  int    `json:"code"`
	Error string `json:"error"`
}

func runClient(args []string) int {
	code, err := clientCommand(args, deskFolder())
	if errors.Is(err, flag.ErrHelp) {
		fmt.Fprint(os.Stderr, clientUsage)
		return 2
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "seatrial-env: %v\n", err)
		return 125
	}
	return code
}

func deskFolder() string {
	if folder := os.Getenv("SEATRIAL_DESK"); folder != "" {
		return folder
	}
	return defaultDesk
}

func clientCommand(args []string, desk string) (int, error) {
	if len(args) == 0 {
		return 0, flag.ErrHelp
	}
	switch verb, rest := args[0], args[1:]; {
	case verb == "exec":
		return clientExec(rest, desk)
	case verb == "put" && len(rest) == 2:
		return clientPut(rest[0], rest[1], desk)
	case verb == "get" && len(rest) == 2:
		return clientGet(rest[0], rest[1], desk)
	case verb == "wait" && len(rest) == 0:
		conn, err := dialDesk(desk, deskCall{Op: "wait"})
		if err != nil {
			return 0, err
		}
		return conn.drain(nil)
	case verb == "hold" && len(rest) <= 1:
		return 0, hold(desk, len(rest) == 1)
	}
	return 0, flag.ErrHelp
}

func clientExec(args []string, desk string) (int, error) {
	call := deskCall{Op: "exec", Env: map[string]string{}}
	flags := flag.NewFlagSet("exec", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	flags.StringVar(&call.User, "u", "", "")
	flags.StringVar(&call.Cwd, "w", "", "")
	flags.Float64Var(&call.Timeout, "t", 0, "")
	flags.BoolVar(&call.Stdin, "i", false, "")
	flags.StringVar(&call.Shell, "c", "", "")
	flags.Func("e", "", func(pair string) error {
		name, value, found := strings.Cut(pair, "=")
		if !found || name == "" {
			return fmt.Errorf("%q is not NAME=VALUE", pair)
		}
		call.Env[name] = value
		return nil
	})
	if err := flags.Parse(args); err != nil {
		return 0, err
	}
	call.Argv = flags.Args()
	if (call.Shell == "") == (len(call.Argv) == 0) {
		return 0, flag.ErrHelp
	}
	conn, err := dialDesk(desk, call)
	if err != nil {
		return 0, err
	}
	if call.Stdin {
		go func() {
			if _, err := io.Copy(frameWriter{conn, deskInput}, os.Stdin); err == nil {
				_ = conn.send(deskEOF, nil) // the command has ended when this fails
			}
		}()
	}
	return conn.drain(nil)
}

func clientPut(local, remote, desk string) (int, error) {
	info, err := os.Stat(local)
	if err != nil {
		return 0, err
	}
	call := deskCall{Op: "put", Path: remote}
	if !info.IsDir() {
		call.Path = path.Dir(remote)
	}
	conn, err := dialDesk(desk, call)
	if err != nil {
		return 0, err
	}
	sent := make(chan error, 1)
	go func() {
		archive := tar.NewWriter(frameWriter{conn, deskInput})
		err := packInto(archive, local, path.Base(remote), info)
		if err == nil {
			err = archive.Close()
		}
		if err == nil {
			err = conn.send(deskEOF, nil)
		}
		sent <- err
	}()
	code, err := conn.drain(nil)
	if err != nil {
		return 0, err
	}
	if code != 0 {
		return code, nil
	}
	return 0, <-sent
}

// packInto writes a file under the name that it gets, or a folder's contents.
func packInto(archive *tar.Writer, local, name string, info fs.FileInfo) error {
	if !info.IsDir() {
		return packOne(archive, local, name, info)
	}
	return filepath.WalkDir(local, func(file string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		relative, err := filepath.Rel(local, file)
		if err != nil || relative == "." {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		return packOne(archive, file, filepath.ToSlash(relative), info)
	})
}

func packOne(archive *tar.Writer, file, name string, info fs.FileInfo) error {
	target := ""
	switch {
	case info.Mode()&fs.ModeSymlink != 0:
		var err error
		if target, err = os.Readlink(file); err != nil {
			return err
		}
	case !info.Mode().IsRegular() && !info.IsDir():
		return nil // a socket or pipe has no contents
	}
	header, err := tar.FileInfoHeader(info, target)
	if err != nil {
		return err
	}
	header.Name, header.Uid, header.Gid, header.Uname, header.Gname = name, 0, 0, "", ""
	if err := archive.WriteHeader(header); err != nil || !info.Mode().IsRegular() {
		return err
	}
	content, err := os.Open(file)
	if err != nil {
		return err
	}
	defer content.Close()
	_, err = io.CopyN(archive, content, info.Size())
	return err
}

func clientGet(remote, local, desk string) (int, error) {
	conn, err := dialDesk(desk, deskCall{Op: "get", Path: remote})
	if err != nil {
		return 0, err
	}
	reader, writer := io.Pipe()
	kind := make(chan string, 1)
	done := make(chan error, 1)
	go func() {
		isDir := <-kind == "dir"
		err := unpack(tar.NewReader(reader), local, isDir)
		if err == nil {
			_, err = io.Copy(io.Discard, reader)
		}
		reader.CloseWithError(err)
		done <- err
	}()
	code, err := conn.drain(func(frame byte, data []byte) error {
		if frame == deskKind {
			kind <- string(data)
			return nil
		}
		_, err := writer.Write(data)
		return err
	})
	close(kind)
	writer.CloseWithError(err) // nil is the end of the stream
	unpacked := <-done
	if err != nil || code != 0 {
		return code, err
	}
	return 0, unpacked
}

// unpack writes what comes from the environment below local and nowhere else, whatever names and links it has. Links that lead out of local
// are left out: whoever read the copy would be shown files of this container, its secrets among them.
func unpack(archive *tar.Reader, local string, isDir bool) error {
	folder, name := local, ""
	if !isDir {
		folder, name = filepath.Dir(local), filepath.Base(local)
	}
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	root, err := os.OpenRoot(folder)
	if err != nil {
		return err
	}
	defer root.Close()
	for {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		entry := path.Clean(header.Name)
		if !isDir {
			entry = name
		}
		switch header.Typeflag {
		case tar.TypeDir:
			if err := root.Mkdir(entry, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
				return err
			}
		case tar.TypeSymlink:
			if !isDir {
				return fmt.Errorf("%s is a link; get what it leads to", name)
			}
			if !staysInside(entry, header.Linkname) {
				continue
			}
			_ = root.Remove(entry)
			if err := root.Symlink(header.Linkname, entry); err != nil {
				return err
			}
		case tar.TypeReg:
			_ = root.Remove(entry)
			file, err := root.OpenFile(entry, os.O_WRONLY|os.O_CREATE|os.O_EXCL, fs.FileMode(header.Mode)&0o777|0o600)
			if err != nil {
				return err
			}
			_, err = io.Copy(file, archive)
			if err = errors.Join(err, file.Close()); err != nil {
				return err
			}
		}
	}
}

// staysInside tells whether a link of a tree leads to a place in the tree, whichever other links of the tree it leads through: steps up may
// only come first, where they start at the link's own folder.
func staysInside(entry, target string) bool {
	if target == "" || strings.HasPrefix(target, "/") {
		return false
	}
	ups, isBelow := 0, false
	for part := range strings.SplitSeq(target, "/") {
		switch {
		case part == "" || part == ".":
		case part != "..":
			isBelow = true
		case isBelow:
			return false
		default:
			ups++
		}
	}
	return ups <= strings.Count(entry, "/")
}

// hold takes the lock that tells the runner that this container lives, and leaves a process with it behind: the postStart hook.
func hold(desk string, isDaemon bool) error {
	if isDaemon {
		for { // the lock's descriptor is inherited; the container's end is this process's end
			time.Sleep(time.Hour)
		}
	}
	file, err := os.OpenFile(filepath.Join(desk, "agent.lock"), os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return err
	}
	defer file.Close()
	if err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return fmt.Errorf("lock %s: %w", file.Name(), err)
	}
	program, err := os.Executable()
	if err != nil {
		return err
	}
	null, err := emptyInput()
	if err != nil {
		return err
	}
	_, err = syscall.ForkExec(program, []string{"seatrial-env", "hold", "--on"}, &syscall.ProcAttr{
		Files: []uintptr{uintptr(null), uintptr(null), uintptr(null), file.Fd()},
		Sys:   &syscall.SysProcAttr{Setsid: true},
	})
	return err
}

// --- the connection ----------------------------------------------------------------------------------------------------------------------

type deskConn struct {
	net.Conn
	mu sync.Mutex
}

// dialDesk connects as soon as the runner has prepared the environment.
func dialDesk(desk string, call deskCall) (*deskConn, error) {
	body, err := json.Marshal(call)
	if err != nil {
		return nil, err
	}
	for end := time.Now().Add(deskPatience); ; time.Sleep(maxRetry) {
		conn, err := net.Dial("unix", filepath.Join(desk, "env.sock"))
		if err == nil {
			c := &deskConn{Conn: conn}
			return c, c.send(deskRequest, body)
		}
		if time.Now().After(end) {
			return nil, fmt.Errorf("the environment is not ready: %w", err)
		}
	}
}

func (c *deskConn) send(frame byte, data []byte) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	head := [5]byte{frame}
	binary.BigEndian.PutUint32(head[1:], uint32(len(data)))
	if _, err := c.Write(head[:]); err != nil {
		return err
	}
	_, err := c.Write(data)
	return err
}

// drain takes frames until the last one. Output goes to standard output and error unless take wants it.
func (c *deskConn) drain(take func(frame byte, data []byte) error) (int, error) {
	defer c.Close()
	for {
		var head [5]byte
		if _, err := io.ReadFull(c, head[:]); err != nil {
			return 0, fmt.Errorf("the runner went away: %w", err)
		}
		size := binary.BigEndian.Uint32(head[1:])
		if size > maxDeskFrame {
			return 0, fmt.Errorf("a frame of %d bytes", size)
		}
		data := make([]byte, size)
		if _, err := io.ReadFull(c, data); err != nil {
			return 0, fmt.Errorf("the runner went away: %w", err)
		}
		switch {
		case head[0] == deskEnd:
			var end deskEnding
			if err := json.Unmarshal(data, &end); err != nil {
				return 0, err
			}
			if end.Error != "" {
				return 0, errors.New(end.Error)
			}
			return end.Code, nil
		case take != nil:
			if err := take(head[0], data); err != nil {
				return 0, err
			}
		case head[0] == deskErr:
			_, _ = os.Stderr.Write(data)
		default:
			_, _ = os.Stdout.Write(data)
		}
	}
}

// frameWriter sends what is written as frames of one type.
type frameWriter struct {
	conn  *deskConn
	frame byte
}

func (w frameWriter) Write(data []byte) (int, error) {
	written := 0
	for len(data) > 0 {
		piece := data[:min(len(data), 64<<10)]
		if err := w.conn.send(w.frame, piece); err != nil {
			return written, err
		}
		written, data = written+len(piece), data[len(piece):]
	}
	return written, nil
}
