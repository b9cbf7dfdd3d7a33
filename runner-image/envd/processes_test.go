package main

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync/atomic"
	"testing"
)

type fakeProcess struct {
	pid, ppid, session, started, threads int
	state, name, cmdline                 string
}

func fakeProc(t *testing.T, processes ...fakeProcess) string {
	t.Helper()
	root := t.TempDir()
	for _, p := range processes {
		folder := filepath.Join(root, fmt.Sprint(p.pid))
		must(t, os.MkdirAll(folder, 0o755))
		if p.state == "" {
			p.state = "S"
		}
		stat := fmt.Sprintf("%d (%s) %s %d %d %d 0 -1 0 0 0 0 0 0 0 0 0 20 0 %d 0 %d 0 0",
			p.pid, p.name, p.state, p.ppid, p.session, p.session, max(1, p.threads), p.started)
		must(t, os.WriteFile(filepath.Join(folder, "stat"), []byte(stat), 0o644))
		must(t, os.WriteFile(filepath.Join(folder, "status"), []byte("Name:\tx\nUid:\t1000\t0\t0\t0\n"), 0o644))
		must(t, os.WriteFile(filepath.Join(folder, "cmdline"), []byte(p.cmdline), 0o644))
	}
	must(t, os.WriteFile(filepath.Join(root, "version"), nil, 0o644))
	return root
}

func TestProcessesTellLeftoversFromTheImagesOwn(t *testing.T) {
	root := fakeProc(t,
		fakeProcess{pid: 1, name: "nginx", cmdline: "nginx\x00-g\x00daemon off;\x00"},
		fakeProcess{pid: 2, ppid: 1, name: "worker", session: 1},
		fakeProcess{pid: 50, ppid: 1, name: "envd", session: 50},
		fakeProcess{pid: 60, ppid: 50, name: "old", session: 60, started: 5},     // was there before
		fakeProcess{pid: 70, ppid: 50, name: "bash", session: 70, started: 9},    // a running command
		fakeProcess{pid: 71, ppid: 70, name: "a) b (c", session: 71, started: 9}, // its detached child
		fakeProcess{pid: 80, ppid: 50, name: "python", session: 77, started: 9, cmdline: "python3\x00-m\x00http.server\n\xff"},
		fakeProcess{pid: 81, ppid: 80, name: "dead", state: "Z", session: 77},
		fakeProcess{pid: 82, ppid: 50, name: "headless", state: "Z", session: 82, threads: 2}, // its first thread has ended
	)
	table := &processTable{root: root, self: 50, before: map[int]uint64{60: 5, 80: 1}, ended: new(atomic.Int64)} // pid 80 was somebody else then
	got, err := table.list(map[int]bool{70: true})
	must(t, err)
	for i := range got.Processes {
		got.Processes[i].session, got.Processes[i].started = 0, 0
	}
	want := processList{Total: 7, Processes: []processInfo{
		{PID: 70, PPID: 50, UID: 1000, Command: "[bash]", Origin: "exec", Active: true},
		{PID: 71, PPID: 70, UID: 1000, Command: "[a) b (c]", Origin: "exec", Active: true},
		{PID: 80, PPID: 50, UID: 1000, Command: "python3 -m http.server??", Origin: "exec"},
		{PID: 82, PPID: 50, UID: 1000, Command: "[headless]", Origin: "exec"},
		{PID: 1, PPID: 0, UID: 1000, Command: "nginx -g daemon off;", Origin: "image"},
		{PID: 2, PPID: 1, UID: 1000, Command: "[worker]", Origin: "image"},
		{PID: 60, PPID: 50, UID: 1000, Command: "[old]", Origin: "image"},
	}}
	if !reflect.DeepEqual(got, want) {
		t.Fatalf("got  %+v\nwant %+v", got, want)
	}
}

func TestACommandLineIsCut(t *testing.T) {
	if got := printable([]byte(strings.Repeat("ab", 500))); got != strings.Repeat("ab", maxCommandBytes/2) {
		t.Fatalf("%d bytes; want %d", len(got), maxCommandBytes)
	}
}

func TestWithoutProcTheRequestFails(t *testing.T) {
	_, err := newProcessTable(filepath.Join(t.TempDir(), "none"), new(atomic.Int64)).list(nil)
	if kindOfError(err) != kindUnsupported {
		t.Fatalf("%v; want kind %s", err, kindUnsupported)
	}
}
