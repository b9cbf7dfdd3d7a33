package main

import (
	"context"
	"errors"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
)

const (
	defaultGrace = 2 * time.Second
	maxGrace     = 30 * time.Second
	// How long output may still come after the command has ended, from children that it left in the background. What was written before
	// the end is always read; this is only for the last words of such children, and what a detached server costs each command.
	drainTime = 100 * time.Millisecond
	// After SIGKILL: a process that is still there then hangs in the kernel.
	killTime      = 5 * time.Second
	groupPoll     = 10 * time.Millisecond
	maxLeftPipes  = 1024
	defaultPath   = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
	privatePrefix = "SEATRIAL_"
)

// execParams asks for one command: exactly one of Argv and Shell.
type execParams struct {
	Argv           []string          `json:"argv"`
	Shell          string            `json:"shell"`
	Env            map[string]string `json:"env"`
	Cwd            string            `json:"cwd"`
	User           string            `json:"user"`
	Stdin          bool              `json:"stdin"`
	Merge          bool              `json:"merge"`
	TimeoutSeconds float64           `json:"timeout_seconds"` // 0: none
}

// execResult says how a command ended; exactly one of Code and Signal is set.
type execResult struct {
	Code      *int  `json:"code,omitempty"`
	Signal    *int  `json:"signal,omitempty"`
	TimedOut  bool  `json:"timed_out,omitempty"`
	OOMKilled *bool `json:"oom_killed,omitempty"` // nil: the kernel does not tell
}

// executor starts commands in this container.
type executor struct {
	reaper    *reaper
	users     *users
	environ   []string // the container's own, without what belongs to seatrial
	cwd       string
	running   *runningSet
	leftPipes atomic.Int32
}

// run starts a command in a session of its own, forwards its output, and returns when the command has ended: by itself, by its timeout, by a
// kill, or because ctx ended. In the last three cases its process group is gone too. Processes that left the group stay.
func (e *executor) run(ctx context.Context, req *request, params execParams) (execResult, error) {
	who, err := e.users.resolve(params.User)
	if err != nil {
		return execResult{}, err
	}
	command, err := e.prepare(params, who)
	if err != nil {
		return execResult{}, err
	}
	timeout, err := seconds(params.TimeoutSeconds, "timeout_seconds")
	if err != nil {
		return execResult{}, err
	}

	pipes, err := openPipes(params.Stdin, params.Merge)
	if err != nil {
		return execResult{}, failf(kindStart, "pipes for %q: %w", command.argv[0], err)
	}
	killsBefore, killsKnown := oomKills()
	pid, ended, err := e.reaper.start(command.path, command.argv, &syscall.ProcAttr{
		Dir:   command.dir,
		Env:   command.env,
		Files: []uintptr{uintptr(pipes.child[0]), uintptr(pipes.child[1]), uintptr(pipes.child[2])},
		Sys:   &syscall.SysProcAttr{Setsid: true, Credential: e.users.credential(who)},
	})
	pipes.closeChildEnds()
	if err != nil {
		pipes.closeOwnEnds()
		return execResult{}, startError(command, who, err)
	}
	e.running.add(pid)
	defer e.running.remove(pid)

	outputs := make([]*output, 0, 2)
	for stream, file := range map[byte]*os.File{streamOut: pipes.stdout, streamErr: pipes.stderr} {
		if file != nil {
			outputs = append(outputs, forward(ctx, req, stream, file))
		}
	}
	if pipes.stdin != nil {
		go feed(req.in, pipes.stdin)
	}

	status, timedOut, err := e.await(ctx, req, pid, ended, timeout)
	if pipes.stdin != nil {
		req.in.finish(io.EOF)
		pipes.stdin.Close()
	}
	for _, out := range outputs {
		out.commandEnded()
	}
	for _, out := range outputs {
		if stillOpen := <-out.done; stillOpen {
			e.leaveOpen(out.pipe)
		} else {
			out.pipe.Close()
		}
	}
	if err != nil {
		return execResult{}, err
	}

	result := execResult{TimedOut: timedOut}
	if killsAfter, ok := oomKills(); ok && killsKnown {
		killed := killsAfter > killsBefore
		result.OOMKilled = &killed
	}
	if status.Signaled() {
		signal := int(status.Signal())
		result.Signal = &signal
	} else {
		code := status.ExitStatus()
		result.Code = &code
	}
	return result, nil
}

// await returns the command's status, ending its process group first when it has to.
func (e *executor) await(
	ctx context.Context, req *request, pid int, ended <-chan syscall.WaitStatus, timeout time.Duration,
) (status syscall.WaitStatus, timedOut bool, err error) {
	var expired <-chan time.Time
	if timeout > 0 {
		timer := time.NewTimer(timeout)
		defer timer.Stop()
		expired = timer.C
	}
	grace := defaultGrace
	select {
	case status = <-ended:
		return status, false, nil
	case <-expired:
		timedOut = true
	case grace = <-req.kill:
	case <-ctx.Done():
		grace = defaultGrace / 2
	}
	endGroup(pid, grace)
	select {
	case status = <-ended:
		return status, timedOut, nil
	case <-time.After(killTime):
		return 0, timedOut, failf(kindUnkillable, "process %d did not end %s after SIGKILL: it hangs in the kernel", pid, killTime)
	}
}

// endGroup asks every process of the group to end, and kills what is left after the grace. It returns when the group is empty, or a little
// after the kill if it does not become empty.
func endGroup(group int, grace time.Duration) {
	empty := func() bool { return errors.Is(syscall.Kill(-group, 0), syscall.ESRCH) }
	waitEmpty := func(limit time.Duration) bool {
		for end := time.Now().Add(limit); !empty(); time.Sleep(groupPoll) {
			if time.Now().After(end) {
				return false
			}
		}
		return true
	}
	if grace > 0 {
		syscall.Kill(-group, syscall.SIGTERM)
		syscall.Kill(-group, syscall.SIGCONT) // a stopped process does not see SIGTERM
		if waitEmpty(grace) {
			return
		}
	}
	syscall.Kill(-group, syscall.SIGKILL)
	waitEmpty(killTime / 5)
}

// preparedCommand is what the kernel needs to know.
type preparedCommand struct {
	path string
	argv []string
	env  []string
	dir  string
}

func (e *executor) prepare(params execParams, who identity) (preparedCommand, error) {
	env, err := buildEnv(e.environ, who, params.Env)
	if err != nil {
		return preparedCommand{}, err
	}
	dir := e.cwd
	if params.Cwd != "" {
		if !filepath.IsAbs(params.Cwd) {
			return preparedCommand{}, failf(kindBadRequest, "working directory %q is not an absolute path", params.Cwd)
		}
		dir = params.Cwd
	}
	if info, err := os.Stat(dir); err != nil || !info.IsDir() {
		return preparedCommand{}, failf(kindNoCwd, "working directory %q does not exist in the environment", dir)
	}
	pathVariable := lookupEnv(env, "PATH")
	argv := params.Argv
	switch {
	case len(params.Argv) > 0 && params.Shell != "":
		return preparedCommand{}, failf(kindBadRequest, "exec takes argv or shell, not both")
	case params.Shell != "":
		shell := findShell(pathVariable)
		if shell == "" {
			return preparedCommand{}, failf(kindNoShell, "the image has neither bash nor sh; give the command as a list of arguments")
		}
		argv = []string{shell, "-c", params.Shell}
	case len(params.Argv) == 0 || params.Argv[0] == "":
		return preparedCommand{}, failf(kindBadRequest, "exec without a command")
	}
	for _, arg := range argv {
		if strings.IndexByte(arg, 0) >= 0 {
			return preparedCommand{}, failf(kindBadRequest, "an argument of the command holds a NUL byte")
		}
	}
	path := argv[0]
	if !strings.Contains(path, "/") {
		if path = findProgram(argv[0], pathVariable, dir); path == "" {
			return preparedCommand{}, failf(kindNotFound, "program %q is not in PATH (%s)", argv[0], pathVariable)
		}
	}
	return preparedCommand{path: path, argv: argv, env: env, dir: dir}, nil
}

func startError(command preparedCommand, who identity, err error) error {
	kind := kindStart
	switch {
	case errors.Is(err, syscall.ENOENT):
		kind = kindNotFound
	case errors.Is(err, syscall.EPERM) && !who.inherit:
		kind = kindCannotUser
	}
	return failf(kind, "start %q in %q: %w", command.path, command.dir, err)
}

// buildEnv gives the environment of a command: the container's own, then what belongs to the user, then what the request says.
// Names of seatrial itself are left out wherever they come from.
func buildEnv(base []string, who identity, extra map[string]string) ([]string, error) {
	var order []string
	values := map[string]string{}
	set := func(name, value string) {
		if strings.HasPrefix(name, privatePrefix) {
			return
		}
		if _, known := values[name]; !known {
			order = append(order, name)
		}
		values[name] = value
	}
	for _, entry := range base {
		if name, value, ok := strings.Cut(entry, "="); ok && name != "" {
			set(name, value)
		}
	}
	if _, ok := values["PATH"]; !ok {
		set("PATH", defaultPath)
	}
	if who.home != "" {
		set("HOME", who.home)
	}
	if !who.inherit && who.name != "" {
		set("USER", who.name)
		set("LOGNAME", who.name)
	}
	for name, value := range extra {
		if name == "" || strings.ContainsAny(name, "=\x00") || strings.IndexByte(value, 0) >= 0 {
			return nil, failf(kindBadRequest, "environment variable %q cannot be passed to a program", name)
		}
		set(name, value)
	}
	env := make([]string, 0, len(order))
	for _, name := range order {
		env = append(env, name+"="+values[name])
	}
	return env, nil
}

func lookupEnv(env []string, name string) string {
	for _, entry := range env {
		if value, ok := strings.CutPrefix(entry, name+"="); ok {
			return value
		}
	}
	return ""
}

// findShell prefers bash, because Harbor runs commands with it.
func findShell(pathVariable string) string {
	for _, name := range []string{"bash", "sh"} {
		if found := findProgram(name, pathVariable+":"+defaultPath, "/"); found != "" {
			return found
		}
	}
	return ""
}

func findProgram(name, pathVariable, dir string) string {
	for _, folder := range filepath.SplitList(pathVariable) {
		if !filepath.IsAbs(folder) {
			folder = filepath.Join(dir, folder)
		}
		candidate := filepath.Join(folder, name)
		if info, err := os.Stat(candidate); err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
			return candidate
		}
	}
	return ""
}

// seconds turns a number of a request into a duration; 0 stays 0.
func seconds(value float64, name string) (time.Duration, error) {
	if math.IsNaN(value) || value < 0 || value > float64(math.MaxInt64/int64(time.Second)) {
		return 0, failf(kindBadRequest, "%s %v is not a number of seconds", name, value)
	}
	return time.Duration(value * float64(time.Second)), nil
}

// commandPipes are the three standard streams of a command; nil where envd holds no end.
type commandPipes struct {
	stdin, stdout, stderr *os.File
	child                 [3]int
	opened                []int
}

func openPipes(withStdin, merge bool) (*commandPipes, error) {
	p := &commandPipes{}
	fail := func(err error) (*commandPipes, error) {
		p.closeChildEnds()
		p.closeOwnEnds()
		return nil, err
	}
	var err error
	if withStdin {
		if p.stdin, p.child[0], err = pipe("stdin", false); err != nil {
			return fail(err)
		}
	} else if p.child[0], err = emptyInput(); err != nil {
		return fail(err)
	}
	p.opened = append(p.opened, p.child[0])
	if p.stdout, p.child[1], err = pipe("stdout", true); err != nil {
		return fail(err)
	}
	p.opened = append(p.opened, p.child[1])
	if merge {
		p.child[2] = p.child[1]
		return p, nil
	}
	if p.stderr, p.child[2], err = pipe("stderr", true); err != nil {
		return fail(err)
	}
	p.opened = append(p.opened, p.child[2])
	return p, nil
}

// emptyInput is /dev/null, or a pipe without a writer where the image has no /dev.
func emptyInput() (int, error) {
	fd, err := syscall.Open("/dev/null", syscall.O_RDONLY|syscall.O_CLOEXEC|syscall.O_NONBLOCK, 0)
	if err == nil {
		return fd, nil
	}
	own, fd, err := pipe("stdin", false)
	if err != nil {
		return -1, err
	}
	own.Close()
	return fd, nil
}

func (p *commandPipes) closeChildEnds() {
	for _, fd := range p.opened {
		syscall.Close(fd)
	}
	p.opened = nil
}

func (p *commandPipes) closeOwnEnds() {
	for _, file := range []*os.File{p.stdin, p.stdout, p.stderr} {
		if file != nil {
			file.Close()
		}
	}
}

// feed copies the request's input to the command. What comes after the command closed its end is thrown away, so that the sender never hangs.
func feed(in *inbox, stdin *os.File) {
	io.Copy(stdin, in)
	stdin.Close()
	io.Copy(io.Discard, in)
}

// output forwards one stream of a command until end of file, or until the command has ended and what it wrote is sent.
type output struct {
	pipe *os.File
	done chan bool // true when some process still holds the stream open
}

// commandEnded interrupts a read that waits for more, so that the rest of the stream is measured.
func (o *output) commandEnded() {
	o.pipe.SetReadDeadline(time.Now())
}

func forward(ctx context.Context, req *request, stream byte, file *os.File) *output {
	out := &output{pipe: file, done: make(chan bool, 1)}
	go func() { out.done <- out.copy(ctx, req, stream) }()
	return out
}

// copy returns whether some process still holds the stream open.
func (o *output) copy(ctx context.Context, req *request, stream byte) bool {
	buf := make([]byte, 32<<10)
	ended := false
	unsent := 0 // bytes that were in the pipe when the command had ended
	var drainEnd time.Time
	for {
		n, err := req.out[stream].take(ctx, len(buf))
		if err != nil {
			return true
		}
		read, err := o.pipe.Read(buf[:n])
		if read < n {
			req.out[stream].give(n - read)
		}
		if read > 0 {
			unsent -= read
			if req.conn.send(frameData, req.id, []byte{stream}, buf[:read]) != nil {
				return true
			}
		}
		switch {
		case err == nil && ended && unsent <= 0 && time.Now().After(drainEnd):
			return true // a writer that never stops
		case err == nil:
		case errors.Is(err, os.ErrDeadlineExceeded) && !ended:
			ended = true
			unsent = unreadBytes(o.pipe)
			drainEnd = time.Now().Add(drainTime)
			o.pipe.SetReadDeadline(drainEnd)
		case errors.Is(err, os.ErrDeadlineExceeded) && unsent > 0:
			o.pipe.SetReadDeadline(time.Now().Add(drainTime)) // the runner was slow, not the pipe
		case errors.Is(err, os.ErrDeadlineExceeded):
			return true
		default:
			return false
		}
	}
}

// leaveOpen keeps reading a pipe that a detached process still writes to: closing it would kill the server with SIGPIPE that a task is
// graded by. At most maxLeftPipes are kept.
func (e *executor) leaveOpen(file *os.File) {
	if e.leftPipes.Add(1) > maxLeftPipes {
		e.leftPipes.Add(-1)
		file.Close()
		return
	}
	go func() {
		defer e.leftPipes.Add(-1)
		file.SetReadDeadline(time.Time{})
		io.Copy(io.Discard, file)
		file.Close()
	}()
}
