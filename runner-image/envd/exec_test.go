package main

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

func runOne(t *testing.T, body map[string]any) (execResult, *wireError, map[byte]string) {
	t.Helper()
	body["op"] = "exec"
	results, output := ask(t, testServer(t), roleAgent, 1, requestFrame(t, 1, body))
	var got struct {
		OK    execResult
		Error *wireError
	}
	if err := json.Unmarshal([]byte(results[1]), &got); err != nil {
		t.Fatal(err)
	}
	return got.OK, got.Error, output
}

func TestExecReportsOutputAndCode(t *testing.T) {
	result, _, output := runOne(t, map[string]any{"shell": "echo out; echo err >&2; exit 7"})
	if result.Code == nil || *result.Code != 7 || output[streamOut] != "out\n" || output[streamErr] != "err\n" {
		t.Fatalf("%+v %q; want code 7, out, err", result, output)
	}
}

func TestExecReportsTheSignal(t *testing.T) {
	result, _, _ := runOne(t, map[string]any{"shell": "kill -KILL $$"})
	if result.Signal == nil || *result.Signal != 9 || result.Code != nil {
		t.Fatalf("%+v; want signal 9", result)
	}
}

func TestMergedStreamsShareOnePipe(t *testing.T) {
	_, _, output := runOne(t, map[string]any{"shell": "echo a; echo b >&2; echo c", "merge": true})
	if output[streamOut] != "a\nb\nc\n" || output[streamErr] != "" {
		t.Fatalf("%q; want a b c on stdout", output)
	}
}

func TestWhatCannotStartIsNamed(t *testing.T) {
	script := filepath.Join(t.TempDir(), "no-interpreter")
	if err := os.WriteFile(script, []byte("#!/no/such/interpreter\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	cases := map[string]struct {
		body map[string]any
		kind string
	}{
		"no command":           {map[string]any{}, kindBadRequest},
		"two commands":         {map[string]any{"argv": []string{"true"}, "shell": "true"}, kindBadRequest},
		"unknown program":      {map[string]any{"argv": []string{"no-such-program"}}, kindNotFound},
		"missing file":         {map[string]any{"argv": []string{"/no/such/file"}}, kindNotFound},
		"missing interpreter":  {map[string]any{"argv": []string{script}}, kindNotFound},
		"not executable":       {map[string]any{"argv": []string{"/etc/passwd"}}, kindStart},
		"missing folder":       {map[string]any{"argv": []string{"true"}, "cwd": "/no/such/folder"}, kindNoCwd},
		"file as folder":       {map[string]any{"argv": []string{"true"}, "cwd": "/etc/passwd"}, kindNoCwd},
		"relative folder":      {map[string]any{"argv": []string{"true"}, "cwd": "tmp"}, kindBadRequest},
		"unknown user":         {map[string]any{"argv": []string{"true"}, "user": "nobody-of-that-name"}, kindNoUser},
		"negative timeout":     {map[string]any{"argv": []string{"true"}, "timeout_seconds": -1}, kindBadRequest},
		"name with an equals":  {map[string]any{"argv": []string{"true"}, "env": map[string]string{"A=B": "c"}}, kindBadRequest},
		"argument with a NUL":  {map[string]any{"argv": []string{"true", "a\x00b"}}, kindBadRequest},
		"arguments of 300 KiB": {map[string]any{"argv": []string{"true", strings.Repeat("a", 300<<10)}}, kindStart},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			if _, err, _ := runOne(t, c.body); err == nil || err.Kind != c.kind {
				t.Fatalf("%+v; want kind %s", err, c.kind)
			}
		})
	}
}

func TestEnvironmentIsTheContainersWithoutOurOwn(t *testing.T) {
	base := []string{"A=1", "SEATRIAL_URL=secret", "HOME=/root", "broken", "A=2"}
	got, err := buildEnv(base, identity{uid: 5, name: "me", home: "/home/me"}, map[string]string{"B": "x=y", "SEATRIAL_B": "no", "A": "3"})
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(got)
	want := []string{"A=3", "B=x=y", "HOME=/home/me", "LOGNAME=me", "PATH=" + defaultPath, "USER=me"}
	if !slices.Equal(got, want) {
		t.Fatalf("%q; want %q", got, want)
	}
}

func TestTheContainersOwnUserKeepsItsHome(t *testing.T) {
	got, err := buildEnv([]string{"PATH=/bin", "HOME=/somewhere"}, identity{inherit: true}, nil)
	if want := []string{"PATH=/bin", "HOME=/somewhere"}; err != nil || !slices.Equal(got, want) {
		t.Fatalf("%q, %v; want %q", got, err, want)
	}
}

func TestEndGroupKillsWhatIgnoresTERM(t *testing.T) {
	ready, childEnd, err := pipe("ready", true)
	must(t, err)
	defer ready.Close()
	script := "trap '' TERM; sleep 100 & echo ready; wait; wait"
	pid, ended, err := testReaper().start("/bin/sh", []string{"sh", "-c", script}, &syscall.ProcAttr{
		Files: []uintptr{0, uintptr(childEnd), 2}, Sys: &syscall.SysProcAttr{Setsid: true},
	})
	must(t, err)
	syscall.Close(childEnd)
	if _, err := ready.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	endGroup(pid, 50*time.Millisecond)
	if status := <-ended; status.Signal() != syscall.SIGKILL {
		t.Fatalf("status %v; want SIGKILL", status)
	}
	if err := syscall.Kill(-pid, 0); !errors.Is(err, syscall.ESRCH) {
		t.Fatalf("group after endGroup: %v; want none", err)
	}
}

func TestManyShortCommandsKeepTheirOwnStatus(t *testing.T) {
	r := testReaper()
	for i := range 200 {
		_, ended, err := r.start("/bin/sh", []string{"sh", "-c", "exit " + strconv.Itoa(i%100)}, &syscall.ProcAttr{Files: []uintptr{0, 1, 2}})
		if err != nil {
			t.Fatal(err)
		}
		if status := <-ended; status.ExitStatus() != i%100 {
			t.Fatalf("command %d ended with %d", i, status.ExitStatus())
		}
	}
}
