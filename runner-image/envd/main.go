// Command envd does in the environment container of a trial what the runner asks: run commands, end process groups, move files.
//
// It dials two unix sockets of the Pod, one of the agent's runner and one of the verifier's, and has no listening end.
//
// What this defends against:
//   - A process of the task cannot pose as a runner: the socket folder is mounted read-only in this container (envd refuses to work where it
//     is not), and there is nothing of envd to connect to.
//   - A command that envd ran cannot pose as envd: envd holds both connections before it runs anything, and each runner accepts one
//     connection and unlinks its socket.
//   - A command cannot read envd's memory or descriptors, nor attach to it: envd is not dumpable, which binds root as well as long as the
//     container has no CAP_SYS_PTRACE.
//   - It cannot slow other requests down or grow envd's memory: frames, streams, listings and answers are bounded.
//
// What it does not:
//   - The image's own ENTRYPOINT may dial first and speak this protocol. Nothing tells it from envd, since it can read and run whatever
//     envd can. The runner therefore treats all answers as untrusted, both greetings carry the same random instance (two ends that differ
//     show an impostor on one of them), and a trial with such an image has a result that is worth as much as the image.
//   - A container of a runner can replace the socket in its own folder, and no other: the runner sees it by the socket's inode.
//   - Root in the container may kill an envd that is not PID 1. The runner sees that as the end of the environment.
package main

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"
)

// defaultCtl is the one folder that a setuid envd dials in; a variable, so that a test can build envd for a folder of its own.
var defaultCtl = "/seatrial/ctl"

// version is set by the build.
var version = "dev"

const usage = `usage: envd            serve (the container's arguments)
       envd --ensure   return when an envd runs in this container, starting one in the background if need be (startup probe)
       envd --build SECONDS COMMAND…   run an image builder as the first process of a build's container
       envd --version
for tests: --ctl=DIR --patience=DURATION --term-time=DURATION
`

func main() {
	os.Exit(run(os.Args))
}

func run(argv []string) int {
	if len(argv) > 0 && filepath.Base(argv[0]) == "seatrial-env" {
		// Any user may call the file that the stage made setuid by this name too, and the client reads and writes what it is told to.
		if isSetuid() {
			logf("seatrial-env is not for a user whom the program makes root")
			return 2
		}
		return runClient(argv[1:])
	}
	if len(argv) == 2 && argv[1] == "--version" {
		fmt.Println("envd", version, "protocol", protocolVersion, runtime.GOOS+"/"+runtime.GOARCH)
		return 0
	}
	if len(argv) > 1 && argv[1] == "--build" {
		return runBuild(argv[2:])
	}
	o, err := parseOptions(argv[1:])
	if err == nil && isSetuid() && o.ctl != defaultCtl {
		err = fmt.Errorf("--ctl is not for a user whom the program makes root")
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "envd: %v\n%s", err, usage)
		return 2
	}
	if o.ensure {
		// It runs beside an agent that may have begun, and what it starts would be taken for the image's.
		if err := prctl(prSetDumpable, 0); err != nil {
			logf("%v", err)
			return 1
		}
		if err := ensure(o); err != nil {
			logf("%v", err)
			return 1
		}
		return 0
	}
	code, err := serve(o)
	if err != nil {
		logf("%v", err)
		return 1
	}
	return code
}

// serve is the life of the one envd of a container.
func serve(o options) (int, error) {
	if err := prctl(prSetDumpable, 0); err != nil {
		return 0, fmt.Errorf("become not dumpable: %w", err)
	}
	if err := prctl(prSetChildSubreaper, 1); err != nil {
		return 0, fmt.Errorf("become a subreaper: %w", err)
	}
	terminate := catchSignals()
	ends := &watchedEnd{}
	children := newReaper(ends.add)
	patienceEnd := time.Now().Add(o.patience)

	folder, err := openWhenThere(o.lockFolder(), patienceEnd)
	if err != nil {
		return 0, err
	}
	defer folder.Close() // and with it the lock: it must not be collected earlier
	if !takeLockSoon(folder) {
		if o.daemon {
			return 0, nil
		}
		if turn, code := standBy(o, folder, ends, terminate); !turn {
			return code, nil
		}
	}
	if o.ctl == defaultCtl {
		for _, who := range []role{roleAgent, roleVerifier} {
			if err := checkReadOnly(o.folder(who)); err != nil {
				return 0, err
			}
		}
	}

	agentFile, verifierFile, err := dialBoth(o, patienceEnd, terminate)
	if err != nil {
		return 0, err
	}
	agent, verifier := newConn(roleAgent, agentFile), newConn(roleVerifier, verifierFile)

	accounts := currentUsers()
	cwd, err := os.Getwd()
	if err != nil {
		cwd = "/"
	}
	firstStart, err := firstProcessStart()
	if err != nil {
		logf("all folders are looked at for changes: %v", err)
	}
	s := &server{
		exec:      &executor{reaper: children, users: accounts, environ: os.Environ(), cwd: cwd, running: newRunningSet()},
		files:     &fileStore{users: accounts, environ: os.Environ(), limits: resourceLimits(), firstStart: firstStart},
		processes: newProcessTable("/proc", &children.orphaned),
		shutdown:  make(chan struct{}),
	}
	greeting, err := buildHello(s.exec)
	if err != nil {
		return 0, err
	}
	for _, c := range []*conn{agent, verifier} {
		greeting.Role = c.role
		if err := c.sendJSON(frameHello, 0, greeting); err != nil {
			logf("%v", err) // its reader will see the end of the connection too
		}
	}
	if err := awaitAccepted(o, patienceEnd, terminate); err != nil {
		return 0, err
	}
	code := s.serveBoth(agent, verifier, terminate, o.termTime)
	if s.endContainer.Load() && o.ctl == defaultCtl && os.Getpid() != 1 {
		// An ENTRYPOINT that stays up would keep the Pod running.
		if err := syscall.Kill(1, syscall.SIGTERM); err != nil {
			logf("end PID 1: %v", err)
		}
	}
	return code, nil
}

// takeLockSoon forgives the instant for which --ensure holds the lock to try it.
func takeLockSoon(folder *os.File) bool {
	for range 5 {
		if takeLock(folder) {
			return true
		}
		time.Sleep(firstRetry)
	}
	return false
}

func buildHello(e *executor) (hello, error) {
	var instance [16]byte
	if _, err := rand.Read(instance[:]); err != nil {
		return hello{}, fmt.Errorf("draw an instance: %w", err)
	}
	h := hello{
		Protocol:      protocolVersion,
		Instance:      hex.EncodeToString(instance[:]),
		PID:           os.Getpid(),
		UID:           e.users.uid,
		GID:           e.users.gid,
		Cwd:           e.cwd,
		OS:            runtime.GOOS,
		Arch:          runtime.GOARCH,
		HasPasswd:     e.users.hasPasswd(),
		CanSwitchUser: e.users.canSwitch,
	}
	if found, ok := e.users.account(fmt.Sprint(e.users.uid)); ok && found.uid == e.users.uid {
		h.User = bounded(found.name)
	}
	h.Home = bounded(lookupEnv(e.environ, "HOME"))
	h.Path = bounded(lookupEnv(e.environ, "PATH"))
	h.Shell = bounded(findShell(lookupEnv(e.environ, "PATH")))
	return h, nil
}

// bounded gives nil for what is empty or absurdly long.
func bounded(text string) *string {
	if text == "" || len(text) > maxPathBytes {
		return nil
	}
	text = strings.ToValidUTF8(text, "?")
	return &text
}

// watchedEnd learns from the reaper how one child ended that somebody else had started: a stand-by passes the code of the serving envd on.
type watchedEnd struct {
	mu     sync.Mutex
	pid    int
	ended  bool
	status syscall.WaitStatus
}

func (w *watchedEnd) watch(pid int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.pid = pid
}

func (w *watchedEnd) add(pid int, status syscall.WaitStatus) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if pid == w.pid {
		w.ended, w.status = true, status
	}
}

// code waits a moment for the child's end; it is 1 where nothing is known, because the other envd was not a child of this process.
func (w *watchedEnd) code(limit time.Duration) int {
	for end := time.Now().Add(limit); time.Now().Before(end); time.Sleep(firstRetry) {
		w.mu.Lock()
		ended, status := w.ended, w.status
		w.mu.Unlock()
		if ended && status.Exited() {
			return status.ExitStatus()
		}
	}
	return 1
}

func logf(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "envd: "+format+"\n", args...)
}
