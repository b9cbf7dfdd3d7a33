package main

import (
	"encoding/binary"
	"errors"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"syscall"
)

// maxDepth of folders below the one asked for: each level keeps one descriptor open.
const maxDepth = 128

// dirBytes bounds how much of a folder's list is in memory at once: the folder's size is the agent's choice.
const dirBytes = 32 << 10

// node is one entry found by walk.
type node struct {
	rel    string   // relative to the start, with slashes; "." is the start itself
	parent *os.Root // the folder that holds it
	name   string   // in parent
	info   fs.FileInfo
}

// open opens a regular file for reading. It fails when the name stands for something else by now: a link is never followed to other content.
func (n node) open() (*os.File, error) {
	// O_NONBLOCK: should it be a fifo by now, the open must not wait for a writer.
	file, err := n.parent.OpenFile(n.name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	info, err := file.Stat()
	if err != nil || !info.Mode().IsRegular() || !os.SameFile(info, n.info) {
		file.Close()
		return nil, errReplaced
	}
	return file, nil
}

var (
	errReplaced = errors.New("was replaced while it was read")
	errStopWalk = errors.New("stop")
	// errSkipFolder of a visit leaves out what the folder holds.
	errSkipFolder = errors.New("skip")
)

// walkLimits bounds a walk; what it met is told afterwards.
type walkLimits struct {
	maxEntries int
	pristine   *pristine // the regular files of these folders are not visited
	entries    int       // visited
	unreadable int       // folders that could not be listed
	hidden     int       // those of them that can be entered all the same
	truncated  bool      // more entries than maxEntries, or deeper than maxDepth
}

// walk visits everything below the folder at start, in order of name, each folder before its content, without following links. Other
// mounts are visited too: the log folders are mounts. visit ends the walk early with errStopWalk, and leaves out a folder's
// content with errSkipFolder.
func walk(start string, limits *walkLimits, visit func(node) error) error {
	root, err := openFolder(start)
	if err != nil {
		return err
	}
	defer root.Close()
	info, err := root.Stat(".")
	if err != nil {
		return err
	}
	err = walkFolder(root, node{rel: ".", info: info}, 0, limits, visit)
	if errors.Is(err, errStopWalk) {
		return nil
	}
	return err
}

// openFolder opens a folder that is not itself a link. Links in its parents belong to the image's layout and are resolved.
func openFolder(start string) (*os.Root, error) {
	before, err := os.Lstat(start)
	if err != nil {
		return nil, err
	}
	if before.Mode()&fs.ModeSymlink != 0 {
		return nil, failf(kindLink, "%s is a link", start)
	}
	if !before.IsDir() {
		return nil, failf(kindIO, "%s is not a directory", start)
	}
	root, err := os.OpenRoot(start)
	if err != nil {
		return nil, err
	}
	if after, err := root.Stat("."); err != nil || !os.SameFile(before, after) {
		root.Close()
		return nil, failf(kindLink, "%s was replaced while it was opened", start)
	}
	return root, nil
}

// walkFolder visits what an open folder holds; info of the node is of the open one.
func walkFolder(folder *os.Root, of node, depth int, limits *walkLimits, visit func(node) error) error {
	names, more, err := listFolder(folder, limits.maxEntries-limits.entries, !limits.pristine.holds(of.info))
	if err != nil {
		limits.unreadable++
		limits.hidden++ // it is open, so it can be entered
		return nil
	}
	limits.truncated = limits.truncated || more
	for _, name := range names {
		if limits.entries >= limits.maxEntries {
			limits.truncated = true
			return errStopWalk
		}
		info, err := folder.Lstat(name)
		if err != nil {
			continue // removed meanwhile
		}
		limits.entries++
		child := node{rel: path.Join(of.rel, name), parent: folder, name: name, info: info}
		err = visit(child)
		if errors.Is(err, errSkipFolder) {
			continue
		}
		if err != nil {
			return err
		}
		if !info.IsDir() {
			continue
		}
		if depth+1 >= maxDepth {
			limits.truncated = true
			continue
		}
		if err := walkInto(child, depth+1, limits, visit); err != nil {
			return err
		}
	}
	return nil
}

func walkInto(child node, depth int, limits *walkLimits, visit func(node) error) error {
	sub, err := child.parent.OpenRoot(child.name)
	if err != nil {
		limits.unreadable++
		if canEnter(child.info) {
			limits.hidden++
		}
		return nil
	}
	defer sub.Close()
	after, err := sub.Stat(".")
	if err != nil || !os.SameFile(child.info, after) {
		limits.unreadable++
		return nil
	}
	child.info = after
	return walkFolder(sub, child, depth, limits, visit)
}

// isSince tells whether an inode changed at a time, in nanoseconds since the epoch, or later. The inode's own time is asked for, since any
// process may set the other two; setting the clock needs a capability that no container of a trial has.
func isSince(info fs.FileInfo, since int64) bool {
	sys, ok := info.Sys().(*syscall.Stat_t)
	return ok && sys.Ctim.Nano() >= since
}

// canEnter tells whether a process of envd's user may use what a folder holds by its name, although it may not list it.
func canEnter(info fs.FileInfo) bool {
	sys, ok := info.Sys().(*syscall.Stat_t)
	return ok && (info.Mode()&0o001 != 0 || (info.Mode()&0o010 != 0 && isOwnGroup(int(sys.Gid))) || int(sys.Uid) == os.Geteuid())
}

func isOwnGroup(gid int) bool {
	groups, err := os.Getgroups()
	return err != nil || gid == os.Getegid() || slices.Contains(groups, gid)
}

// listFolder gives the sorted names of a folder, at most limit of those that the file system names first, with or without regular files.
func listFolder(folder *os.Root, limit int, withFiles bool) (names []string, more bool, err error) {
	dir, err := folder.Open(".")
	if err != nil {
		return nil, false, err
	}
	defer dir.Close()
	for {
		batch, err := readTyped(folder, dir)
		if err != nil {
			return nil, false, err
		}
		for _, entry := range batch {
			if withFiles || !entry.kind.IsRegular() {
				names = append(names, entry.name)
			}
		}
		if len(names) > limit {
			names, more = names[:limit], true
		}
		if len(batch) == 0 || more {
			slices.Sort(names)
			return names, more, nil
		}
	}
}

type typedName struct {
	name string
	kind fs.FileMode // its type bits
}

// readTyped reads the next names of an open folder, at least one but for its end, and asks for an inode only where the file system does not
// tell the kind of it. Package os asks for each in a folder of an os.Root.
func readTyped(folder *os.Root, dir *os.File) ([]typedName, error) {
	buffer := make([]byte, dirBytes)
	for {
		n, err := syscall.ReadDirent(int(dir.Fd()), buffer)
		if errors.Is(err, syscall.EINTR) {
			continue
		}
		if err != nil || n <= 0 {
			return nil, err
		}
		if found := typedNames(buffer[:n], folder.Lstat); len(found) > 0 {
			return found, nil
		}
	}
}

// typedNames takes the kernel's struct linux_dirent64 apart: inode and offset of 8 bytes, length of 2, kind of 1, the name up to a zero.
func typedNames(data []byte, lstat func(string) (fs.FileInfo, error)) []typedName {
	const head = 19
	var found []typedName
	for len(data) > head {
		length := int(binary.NativeEndian.Uint16(data[16:]))
		if length <= head || length > len(data) {
			break
		}
		name, _, _ := strings.Cut(string(data[head:length]), "\x00")
		kind, known := direntKinds[data[18]]
		data = data[length:]
		if name == "." || name == ".." {
			continue
		}
		if !known {
			info, err := lstat(name)
			if err != nil {
				continue // removed meanwhile
			}
			kind = info.Mode().Type()
		}
		found = append(found, typedName{name, kind})
	}
	return found
}

var direntKinds = map[byte]fs.FileMode{
	syscall.DT_REG:  0,
	syscall.DT_DIR:  fs.ModeDir,
	syscall.DT_LNK:  fs.ModeSymlink,
	syscall.DT_FIFO: fs.ModeNamedPipe,
	syscall.DT_SOCK: fs.ModeSocket,
	syscall.DT_CHR:  fs.ModeDevice | fs.ModeCharDevice,
	syscall.DT_BLK:  fs.ModeDevice,
}

// emptyFolder removes everything that a folder holds.
func emptyFolder(folder *os.Root) error {
	for {
		names, more, err := listFolder(folder, 1024, true)
		if err != nil {
			return err
		}
		for _, name := range names {
			if err := folder.RemoveAll(name); err != nil {
				return err
			}
		}
		if !more {
			return nil
		}
	}
}
