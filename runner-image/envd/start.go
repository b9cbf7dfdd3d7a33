package main

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const (
	// Waiting for the runners. Their images may still be pulled when the environment starts.
	defaultPatience = 10 * time.Minute
	firstRetry      = 2 * time.Millisecond
	maxRetry        = 50 * time.Millisecond
	// How long --ensure waits for an ENTRYPOINT that runs its arguments: envd as a child of such an ENTRYPOINT, or as PID 1, is preferred,
	// because its end is the end of the container.
	argsTime   = 250 * time.Millisecond
	daemonTime = 10 * time.Second
	// A Pod has 60 s after SIGTERM; the rest is for the kernel and the kubelet.
	defaultTermTime = 55 * time.Second
	lockPoll        = 100 * time.Millisecond
)

// options are the command line; everything but the mode has defaults that suit a trial Pod.
type options struct {
	ensure, daemon bool
	ctl            string
	patience       time.Duration
	termTime       time.Duration
}

func parseOptions(args []string) (options, error) {
	o := options{ctl: defaultCtl, patience: defaultPatience, termTime: defaultTermTime}
	for _, arg := range args {
		name, value, _ := strings.Cut(arg, "=")
		switch name {
		case "--ensure":
			o.ensure = true
		case "--daemon":
			o.daemon = true
		case "--ctl":
			o.ctl = value
		case "--patience", "--term-time":
			duration, err := time.ParseDuration(value)
			if err != nil {
				return o, fmt.Errorf("%s: %w", name, err)
			}
			if name == "--patience" {
				o.patience = duration
			} else {
				o.termTime = duration
			}
		default:
			return o, fmt.Errorf("unknown argument %q", arg)
		}
	}
	if !filepath.IsAbs(o.ctl) {
		return o, fmt.Errorf("--ctl=%s is not an absolute path", o.ctl)
	}
	return o, nil
}

// isSetuid tells whether the file's owner gave this process more rights than its caller has. Any process of the container can start such an
// envd, so it serves nobody but the runners, whose sockets are gone once an envd has connected, and it passes on no signal.
func isSetuid() bool { return os.Geteuid() != os.Getuid() }

func (o options) args() []string {
	return []string{"--ctl=" + o.ctl, "--patience=" + o.patience.String(), "--term-time=" + o.termTime.String()}
}

func (o options) folder(who role) string { return filepath.Join(o.ctl, string(who)) }

func (o options) socket(who role) string { return filepath.Join(o.folder(who), "envd.sock") }

// lockFolder is the verifier's: every start of envd in this Pod sees it, it exists before the container, it can be locked although it is
// mounted read-only, and no code of the user's is where it could be locked too, but for the image's own.
func (o options) lockFolder() string { return o.folder(roleVerifier) }

// takeLock makes this process the one envd of the container, until it ends.
func takeLock(folder *os.File) bool {
	return syscall.Flock(int(folder.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil
}

// ensure is the startup probe: it returns when an envd runs in this container, starting one in the background if need be. It may race with
// an envd that the ENTRYPOINT starts; the lock decides which of them serves.
func ensure(o options) error {
	folder, err := openWhenThere(o.lockFolder(), time.Now().Add(o.patience))
	if err != nil {
		return err
	}
	defer folder.Close()
	for end := time.Now().Add(argsTime); time.Now().Before(end); time.Sleep(firstRetry) {
		if isEnvd(1) {
			return nil
		}
		if !takeLock(folder) {
			return nil
		}
		// Held for an instant only; an envd that starts just now retries.
		if err := syscall.Flock(int(folder.Fd()), syscall.LOCK_UN); err != nil {
			return fmt.Errorf("unlock %s: %w", folder.Name(), err)
		}
	}
	return startDaemon(o)
}

// isEnvd tells whether a process is this program, serving or about to. Its name is enough: the answer only decides who starts envd, and who
// is told of a signal.
func isEnvd(pid int) bool {
	line, err := readStart(filepath.Join("/proc", strconv.Itoa(pid), "cmdline"), maxPathBytes)
	if err != nil {
		return false
	}
	own, err := os.Executable()
	if err != nil {
		own = os.Args[0]
	}
	argv := strings.Split(string(line), "\x00")
	return (argv[0] == own || argv[0] == os.Args[0]) && !slices.Contains(argv, "--ensure")
}

// startDaemon starts envd in a session of its own, without the probe's descriptors: the probe ends only when nobody holds them.
func startDaemon(o options) error {
	program, err := os.Executable()
	if err != nil {
		program = os.Args[0]
	}
	null, err := emptyInput()
	if err != nil {
		return fmt.Errorf("open /dev/null: %w", err)
	}
	defer syscall.Close(null)
	output := null
	if fd, err := openDaemonLog(o); err == nil {
		output = fd
		defer syscall.Close(fd)
	}
	argv := append([]string{program, "--daemon"}, o.args()...)
	_, err = syscall.ForkExec(program, argv, &syscall.ProcAttr{
		Env:   os.Environ(),
		Files: []uintptr{uintptr(null), uintptr(output), uintptr(output)},
		Sys:   &syscall.SysProcAttr{Setsid: true},
	})
	if err != nil {
		return fmt.Errorf("start %s in the background: %w", program, err)
	}
	return nil
}

// openDaemonLog opens the container's own log where PID 1 lets us write to it, else /dev/null.
func openDaemonLog(o options) (int, error) {
	if o.ctl == defaultCtl {
		const flags = syscall.O_WRONLY | syscall.O_APPEND | syscall.O_NONBLOCK | syscall.O_NOCTTY | syscall.O_CLOEXEC
		if fd, err := syscall.Open("/proc/1/fd/2", flags, 0); err == nil {
			return fd, nil
		}
	}
	return syscall.Open("/dev/null", syscall.O_WRONLY|syscall.O_CLOEXEC, 0)
}

func openWhenThere(folder string, end time.Time) (*os.File, error) {
	for pause := firstRetry; ; pause = min(pause*3/2, maxRetry) {
		file, err := os.Open(folder)
		if err == nil {
			return file, nil
		}
		if time.Now().After(end) {
			return nil, fmt.Errorf("open the socket folder: %w", err)
		}
		time.Sleep(pause)
	}
}

// dialBoth connects to both runners, as soon as each listens. Nothing is served before: a process that envd started could otherwise reach a
// socket first.
func dialBoth(o options, end time.Time, stop <-chan os.Signal) (agent, verifier *os.File, err error) {
	for pause := firstRetry; ; pause = min(pause*3/2, maxRetry) {
		var agentErr, verifierErr error
		if agent == nil {
			agent, agentErr = connectUnix(o.socket(roleAgent))
		}
		if verifier == nil {
			verifier, verifierErr = connectUnix(o.socket(roleVerifier))
		}
		if agent != nil && verifier != nil {
			return agent, verifier, nil
		}
		failure := errors.Join(agentErr, verifierErr)
		if time.Now().After(end) {
			return nil, nil, fmt.Errorf("no runner listens in %s: %w", o.ctl, failure)
		}
		select {
		case <-stop:
			return nil, nil, fmt.Errorf("stopped while waiting for the runners: %w", failure)
		case <-time.After(pause):
		}
	}
}

// awaitAccepted waits until no runner can be reached any more: each removes its socket when it has accepted us. A process that envd started
// before could still queue up behind us.
func awaitAccepted(o options, end time.Time, stop <-chan os.Signal) error {
	for pause := firstRetry; exists(o.socket(roleAgent)) || exists(o.socket(roleVerifier)); pause = min(pause*3/2, maxRetry) {
		if time.Now().After(end) {
			return fmt.Errorf("a runner that listens in %s did not accept the connection", o.ctl)
		}
		select {
		case <-stop:
			return errors.New("stopped while waiting for the runners to accept")
		case <-time.After(pause):
		}
	}
	return nil
}

// checkReadOnly refuses to work where the sockets could be replaced by processes of this container.
func checkReadOnly(folder string) error {
	probe := filepath.Join(folder, ".envd-probe")
	fd, err := syscall.Open(probe, syscall.O_WRONLY|syscall.O_CREAT|syscall.O_EXCL|syscall.O_CLOEXEC, 0o600)
	if err != nil {
		return nil
	}
	syscall.Close(fd)
	return errors.Join(fmt.Errorf("%s is writable in this container: mount it read-only", folder), os.Remove(probe))
}

// standBy keeps the container alive while another envd serves, because this process may be its PID 1. It returns true when it is this
// process's turn to serve, and false with an exit code when the other one was done.
func standBy(o options, folder *os.File, ends *watchedEnd, terminate <-chan os.Signal) (serve bool, code int) {
	logf("another envd serves this container; standing by")
	others := otherEnvds()
	if len(others) > 0 {
		ends.watch(others[0])
	}
	for {
		select {
		case <-terminate:
			if isSetuid() && os.Getpid() != 1 {
				continue
			}
			for _, pid := range otherEnvds() {
				_ = syscall.Kill(pid, syscall.SIGTERM) // it may have ended meanwhile
			}
		case <-time.After(lockPoll):
		}
		if !takeLock(folder) {
			continue
		}
		if exists(o.socket(roleAgent)) && exists(o.socket(roleVerifier)) {
			return true, 0 // it ended before it had connected
		}
		return false, ends.code(time.Second)
	}
}

func exists(name string) bool {
	_, err := os.Lstat(name)
	return err == nil
}

// otherEnvds are the pids of the envd processes of this container except this one.
func otherEnvds() []int {
	names, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return nil
	}
	var pids []int
	for _, name := range names {
		pid, err := strconv.Atoi(filepath.Base(name))
		if err == nil && pid != os.Getpid() && isEnvd(pid) {
			pids = append(pids, pid)
		}
	}
	return pids
}

// catchSignals returns the channel on which SIGTERM and SIGINT arrive. Other signals that would end the process are caught and dropped: any
// process of the same user could send them. Caught, not ignored, because commands would inherit that.
func catchSignals() <-chan os.Signal {
	terminate := make(chan os.Signal, 1)
	signal.Notify(terminate, syscall.SIGTERM, syscall.SIGINT)
	dropped := make(chan os.Signal, 1)
	signal.Notify(dropped, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGPIPE, syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGALRM,
		syscall.SIGVTALRM, syscall.SIGPROF, syscall.SIGABRT, syscall.SIGTRAP, syscall.SIGSYS, syscall.SIGXCPU, syscall.SIGXFSZ,
		syscall.SIGIO, syscall.SIGPWR, syscall.SIGSTKFLT, syscall.SIGTSTP, syscall.SIGTTIN, syscall.SIGTTOU)
	go func() {
		for range dropped {
		}
	}()
	return terminate
}
