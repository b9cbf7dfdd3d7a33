package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
)

const (
	maxProcesses    = 1000 // listed
	maxScanned      = 32768
	maxCommandBytes = 200
	procReadBytes   = 4 << 10
)

// runningSet holds the pids of the commands that run now; each leads a session.
type runningSet struct {
	mu   sync.Mutex
	pids map[int]bool
}

func newRunningSet() *runningSet { return &runningSet{pids: map[int]bool{}} }

func (s *runningSet) add(pid int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pids[pid] = true
}

func (s *runningSet) remove(pid int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.pids, pid)
}

func (s *runningSet) snapshot() map[int]bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	pids := make(map[int]bool, len(s.pids))
	for pid := range s.pids {
		pids[pid] = true
	}
	return pids
}

// processInfo is one process of the container.
type processInfo struct {
	PID     int    `json:"pid"`
	PPID    int    `json:"ppid"`
	UID     int    `json:"uid"`
	Command string `json:"command"`
	// "exec" when it descends from a command that envd ran, also after that command has ended; "image" when the ENTRYPOINT started it.
	Origin string `json:"origin"`
	// Active: it belongs to a command that still runs.
	Active bool `json:"active"`

	session  int
	started  uint64
	isKernel bool
}

// kernelThread is PF_KTHREAD of the kernel's flags of a process.
const kernelThread = 0x00200000

type processList struct {
	Processes []processInfo `json:"processes"`
	Total     int           `json:"total"`
	// Orphans that have ended so far: a process that goes on in ever new children is seen by no look at the table, but by its ends.
	EndedOrphans int64 `json:"ended_orphans"`
}

// processTable lists the container's processes and tells what envd's commands left behind from what the image started.
//
// Orphans of a command are handed to envd by the kernel (PID 1 or subreaper), so ancestry tells them apart; only an ENTRYPOINT that started
// something and then became envd by exec needs the list of what was there before.
type processTable struct {
	root   string // /proc
	self   int
	before map[int]uint64 // pid -> start time of what was there before envd served
	ended  *atomic.Int64  // orphans
}

func newProcessTable(root string, ended *atomic.Int64) *processTable {
	t := &processTable{root: root, self: os.Getpid(), before: map[int]uint64{}, ended: ended}
	found, err := t.scan()
	if err != nil {
		return t
	}
	for pid, process := range found {
		t.before[pid] = process.started
	}
	return t
}

func (t *processTable) list(active map[int]bool) (processList, error) {
	found, err := t.scan()
	if err != nil {
		return processList{}, failf(kindUnsupported, "list processes: %w", err)
	}
	result := processList{Processes: []processInfo{}}
	for pid, process := range found {
		if pid == t.self {
			continue
		}
		process.Origin = "image"
		process.Active = active[process.session]
		// Up to the child of envd from which the process descends; the bound is for a table that changed while it was read.
		top, below := process, 0
		for ; top.PPID != t.self && below < maxScanned; below++ {
			if active[top.PID] {
				process.Active = true
			}
			parent, known := found[top.PPID]
			if !known {
				break
			}
			top = parent
		}
		if active[top.PID] {
			process.Active = true
		}
		started, wasThere := t.before[top.PID]
		if top.PPID == t.self && !(wasThere && started == top.started) {
			process.Origin = "exec"
		}
		if top.PPID == 0 && top.PID != 1 && !top.isKernel {
			// Somebody outside ran it in this container, such as the kubelet a probe. It is soon gone, or it is not what it was.
			process.Origin, process.Active = "exec", true
		}
		result.Processes = append(result.Processes, process)
	}
	result.Total, result.EndedOrphans = len(result.Processes), t.ended.Load()
	sort.Slice(result.Processes, func(i, j int) bool {
		a, b := result.Processes[i], result.Processes[j]
		if a.Origin != b.Origin {
			return a.Origin == "exec"
		}
		return a.PID < b.PID
	})
	if len(result.Processes) > maxProcesses {
		result.Processes = result.Processes[:maxProcesses]
	}
	return result, nil
}

func (t *processTable) scan() (map[int]processInfo, error) {
	dir, err := os.Open(t.root)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	names, err := dir.Readdirnames(maxScanned)
	if err != nil {
		return nil, err
	}
	found := make(map[int]processInfo, len(names))
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		if process, ok := t.read(pid); ok {
			found[pid] = process
		}
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("no process in %s", t.root)
	}
	return found, nil
}

func (t *processTable) read(pid int) (processInfo, bool) {
	folder := filepath.Join(t.root, strconv.Itoa(pid))
	stat, err := readStart(filepath.Join(folder, "stat"), procReadBytes)
	if err != nil {
		return processInfo{}, false
	}
	process, ok := parseStat(pid, stat)
	if !ok {
		return processInfo{}, false
	}
	status, err := readStart(filepath.Join(folder, "status"), procReadBytes)
	if err != nil {
		return processInfo{}, false
	}
	process.UID = parseUID(status)
	if line, err := readStart(filepath.Join(folder, "cmdline"), maxCommandBytes); err == nil && len(line) > 0 {
		process.Command = printable(line)
	}
	return process, true
}

// parseStat reads /proc/<pid>/stat. The name in parentheses may hold anything, so fields are counted from its last parenthesis.
// A zombie is not a process any more, unless only its first thread has ended and others go on.
func parseStat(pid int, stat []byte) (processInfo, bool) {
	open, end := bytes.IndexByte(stat, '('), bytes.LastIndexByte(stat, ')')
	if open < 0 || end < open {
		return processInfo{}, false
	}
	fields := strings.Fields(string(stat[end+1:]))
	if len(fields) < 20 || fields[0] == "X" || (fields[0] == "Z" && (fields[17] == "0" || fields[17] == "1")) {
		return processInfo{}, false
	}
	ppid, err1 := strconv.Atoi(fields[1])
	session, err2 := strconv.Atoi(fields[3])
	started, err3 := strconv.ParseUint(fields[19], 10, 64)
	if err1 != nil || err2 != nil || err3 != nil {
		return processInfo{}, false
	}
	flags, err4 := strconv.ParseUint(fields[6], 10, 64)
	name := printable(stat[open+1 : end])
	return processInfo{
		PID: pid, PPID: ppid, Command: "[" + name + "]", session: session, started: started,
		isKernel: err4 == nil && flags&kernelThread != 0,
	}, true
}

func parseUID(status []byte) int {
	for line := range strings.SplitSeq(string(status), "\n") {
		if rest, ok := strings.CutPrefix(line, "Uid:"); ok {
			if fields := strings.Fields(rest); len(fields) > 0 {
				if uid, err := strconv.Atoi(fields[0]); err == nil {
					return uid
				}
			}
		}
	}
	return -1
}

// printable makes one line of a command line: arguments are separated by spaces, control characters and broken UTF-8 become "?".
func printable(raw []byte) string {
	if len(raw) > maxCommandBytes {
		raw = raw[:maxCommandBytes]
	}
	text := strings.ToValidUTF8(strings.TrimRight(string(raw), "\x00"), "?")
	return strings.Map(func(r rune) rune {
		switch {
		case r == 0:
			return ' '
		case r < ' ' || r == 0x7f:
			return '?'
		}
		return r
	}, text)
}

// oomKills is the number of processes that the container's memory limit has killed so far (cgroup v2, then v1).
func oomKills() (int, bool) {
	for _, path := range []string{"/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control"} {
		text, err := readStart(path, procReadBytes)
		if err != nil {
			continue
		}
		for line := range strings.SplitSeq(string(text), "\n") {
			if rest, ok := strings.CutPrefix(line, "oom_kill "); ok {
				if count, err := strconv.Atoi(strings.TrimSpace(rest)); err == nil {
					return count, true
				}
			}
		}
	}
	return 0, false
}

// readStart reads at most limit bytes.
func readStart(path string, limit int) ([]byte, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	buf := make([]byte, limit)
	n := 0
	for n < limit {
		k, err := file.Read(buf[n:])
		n += k
		if err != nil || k == 0 {
			break
		}
	}
	return buf[:n], nil
}
