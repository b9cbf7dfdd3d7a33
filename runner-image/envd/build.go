package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// The first process of an image build's container: it runs the builder, ends it after its time, and leaves a termination message from which
// the failing instruction can be told.
//
// Why not the builder alone: Kubernetes keeps the last 2 KiB of what a container printed, and after a command that prints much these no
// longer name the instruction. A build that hangs or fills the disk names none at all.

const (
	buildTimedOut    = 124
	buildTerminated  = 143
	instructionBytes = 600
	tailBytes        = 2000
	buildLineBytes   = 64 * 1024
)

// kaniko logs each instruction before it begins, in one of two forms: INFO[0001] RUN true, or time="…" level=info msg="RUN true".
var (
	plainLine  = regexp.MustCompile(`^[A-Z]{4}\[\d+\]\s+(.*)$`)
	quotedLine = regexp.MustCompile(`^time="[^"]*" level=info msg=(".*")$`)
	step       = regexp.MustCompile(`^(?:FROM|RUN|COPY|ADD|WORKDIR|USER|ENV|ARG|ENTRYPOINT|CMD|VOLUME|EXPOSE|LABEL|SHELL|Retrieving image manifest) `)
)

// runBuild is `envd --build SECONDS COMMAND…`.
func runBuild(argv []string) int {
	if len(argv) < 2 {
		fmt.Fprint(os.Stderr, usage)
		return 2
	}
	if isSetuid() {
		logf("--build is not for a user whom the program makes root")
		return 2
	}
	seconds, err := strconv.ParseFloat(argv[0], 64)
	if err != nil || !(seconds > 0 && seconds < 1e9) {
		fmt.Fprintf(os.Stderr, "envd: --build %q: not a number of seconds\n%s", argv[0], usage)
		return 2
	}
	message, err := os.OpenFile(terminationLog(), os.O_WRONLY|os.O_CREATE, 0o644)
	if err != nil {
		logf("open the termination message: %v", err)
		return 1
	}
	defer message.Close()
	return build(argv[1:], time.Duration(seconds*float64(time.Second)), message, os.Stderr, catchSignals())
}

func terminationLog() string {
	if path := os.Getenv("SEATRIAL_TERMINATION_LOG"); path != "" {
		return path
	}
	return "/dev/termination-log"
}

// build returns the builder's exit code, buildTimedOut or buildTerminated. A builder that succeeds writes its own message.
func build(command []string, limit time.Duration, message io.Writer, output io.Writer, terminate <-chan os.Signal) int {
	read, write, err := os.Pipe()
	if err != nil {
		logf("make a pipe: %v", err)
		return 1
	}
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Stdout, cmd.Stderr = write, write
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	err = cmd.Start()
	write.Close()
	if err != nil {
		read.Close()
		fmt.Fprintf(message, "start %s: %v\n", command[0], err)
		return 127
	}
	log := &buildLog{}
	drained, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		defer close(drained)
		_, _ = io.Copy(io.MultiWriter(log, output), read)
	}()
	go func() { ended <- cmd.Wait() }()

	timer := time.NewTimer(limit)
	defer timer.Stop()
	code := 0
	select {
	case err := <-ended:
		code = exitCode(err)
	case <-timer.C:
		code = buildTimedOut
	case <-terminate:
		code = buildTerminated
	}
	if code == buildTimedOut || code == buildTerminated {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
	}
	read.SetReadDeadline(time.Now().Add(drainTime))
	<-drained
	read.Close()
	if code != 0 {
		_, _ = message.Write(log.message())
	}
	return code
}

func exitCode(err error) int {
	var exit *exec.ExitError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &exit) && exit.ExitCode() >= 0:
		return exit.ExitCode()
	case errors.As(err, &exit):
		return 128 + int(exit.Sys().(syscall.WaitStatus).Signal())
	}
	return 1
}

// buildLog keeps the last instruction and the end of what a builder prints; it is written by one goroutine and read after it.
type buildLog struct {
	instruction string
	line        []byte
	tail        []byte
}

func (b *buildLog) Write(data []byte) (int, error) {
	b.tail = append(b.tail, data...)
	if over := len(b.tail) - tailBytes; over > 0 {
		b.tail = append(b.tail[:0], b.tail[over:]...)
	}
	for rest := data; len(rest) > 0; {
		part, after, whole := bytes.Cut(rest, []byte("\n"))
		if room := buildLineBytes - len(b.line); room > 0 {
			b.line = append(b.line, part[:min(room, len(part))]...)
		}
		if whole {
			b.endLine()
		}
		rest = after
	}
	return len(data), nil
}

func (b *buildLog) endLine() {
	if text := logged(strings.TrimRight(string(b.line), "\r")); step.MatchString(text) {
		b.instruction = text[:min(len(text), instructionBytes)]
	}
	b.line = b.line[:0]
}

// logged is what kaniko says in a line of its log; empty for other output.
func logged(line string) string {
	if found := quotedLine.FindStringSubmatch(line); found != nil {
		text, err := strconv.Unquote(found[1])
		if err != nil {
			return ""
		}
		return strings.ReplaceAll(text, "\n", " ")
	}
	if found := plainLine.FindStringSubmatch(line); found != nil {
		return found[1]
	}
	return ""
}

// message is in kaniko's own form, so that one reader understands it and a plain log.
func (b *buildLog) message() []byte {
	text := strings.ToValidUTF8(string(b.tail), "?")
	if len(b.tail) == tailBytes {
		// Its first line is cut.
		if _, after, found := strings.Cut(text, "\n"); found {
			text = after
		}
	}
	if b.instruction != "" {
		text = "INFO[0000] " + strings.ToValidUTF8(b.instruction, "?") + "\n" + text
	}
	return []byte(text)
}
