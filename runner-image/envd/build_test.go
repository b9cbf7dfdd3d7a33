package main

import (
	"bytes"
	"io"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"
)

const forever = time.Hour

func buildShell(t *testing.T, script string, limit time.Duration, terminate <-chan os.Signal) (int, string) {
	t.Helper()
	var message bytes.Buffer
	code := build([]string{"/bin/sh", "-c", script}, limit, &message, io.Discard, terminate)
	return code, message.String()
}

func TestABuilderThatSucceedsKeepsItsOwnMessage(t *testing.T) {
	if code, message := buildShell(t, "echo INFO[0001] RUN true", forever, nil); code != 0 || message != "" {
		t.Fatalf("%d %q; want 0 and nothing", code, message)
	}
}

func TestTheInstructionIsNamedHoweverMuchItsCommandPrints(t *testing.T) {
	forms := map[string]string{
		"plain":  `echo 'INFO[0001] RUN echo "a" && false'`,
		"quoted": `echo 'time="2026-11-30T01:56:09Z" level=info msg="RUN echo \"a\" && false"'`,
	}
	for name, line := range forms {
		t.Run(name, func(t *testing.T) {
			noise := "; i=0; while [ $i -lt 500 ]; do echo some noise $i; i=$((i+1)); done; echo error: exit status 1 >&2; exit 1"
			code, message := buildShell(t, line+noise, forever, nil)
			first, rest, _ := strings.Cut(message, "\n")
			if code != 1 || first != `INFO[0000] RUN echo "a" && false` || !strings.HasSuffix(rest, "some noise 499\nerror: exit status 1\n") {
				t.Fatalf("%d %q", code, message)
			}
			if len(message) > instructionBytes+tailBytes+len("INFO[0000] \n") {
				t.Fatalf("%d bytes", len(message))
			}
		})
	}
}

func TestABuilderThatHangsIsEndedAndItsInstructionNamed(t *testing.T) {
	code, message := buildShell(t, "echo 'INFO[0001] RUN sleep 3600'; sleep 3600", time.Second, nil)
	if code != buildTimedOut || !strings.HasPrefix(message, "INFO[0000] RUN sleep 3600\n") {
		t.Fatalf("%d %q; want %d", code, message, buildTimedOut)
	}
}

func TestABuildThatIsTerminatedNamesItsInstruction(t *testing.T) {
	terminate := make(chan os.Signal, 1)
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		// The signal comes when the builder is at its instruction.
		buffer := make([]byte, 1)
		_, _ = read.Read(buffer)
		terminate <- syscall.SIGTERM
	}()
	var message bytes.Buffer
	script := "echo 'INFO[0001] RUN fill the disk'; sleep 3600"
	code := build([]string{"/bin/sh", "-c", script}, forever, &message, write, terminate)
	if code != buildTerminated || !strings.HasPrefix(message.String(), "INFO[0000] RUN fill the disk\n") {
		t.Fatalf("%d %q; want %d", code, message.String(), buildTerminated)
	}
}

func TestABuilderThatCannotStartIsNamed(t *testing.T) {
	var message bytes.Buffer
	code := build([]string{"/no/such/builder"}, forever, &message, io.Discard, nil)
	if code != 127 || !strings.HasPrefix(message.String(), "start /no/such/builder: ") {
		t.Fatalf("%d %q", code, message.String())
	}
}

func TestABuilderEndedByASignalHasACode(t *testing.T) {
	if code, _ := buildShell(t, "kill -KILL $$", forever, nil); code != 137 {
		t.Fatalf("%d; want 137", code)
	}
}
