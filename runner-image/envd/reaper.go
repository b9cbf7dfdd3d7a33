package main

import (
	"errors"
	"os"
	"os/signal"
	"sync"
	"sync/atomic"
	"syscall"
)

// reaper waits for every child of this process: commands that envd started, and orphans that the kernel hands to PID 1 or to a subreaper.
//
// One waiter for all, because wait4(-1) beside a wait for one pid would steal its status. A start holds the lock until its pid is known, so
// that even a command that ends at once finds its receiver.
type reaper struct {
	mu       sync.Mutex
	waiting  map[int]chan syscall.WaitStatus
	orphans  func(pid int, status syscall.WaitStatus) // called for every other child; may be nil
	orphaned atomic.Int64                             // how many other children have ended
}

// newReaper starts reaping at once.
func newReaper(orphans func(pid int, status syscall.WaitStatus)) *reaper {
	r := &reaper{waiting: map[int]chan syscall.WaitStatus{}, orphans: orphans}
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, syscall.SIGCHLD)
	go func() {
		r.collect() // children that ended before the handler was there
		for range ended {
			r.collect()
		}
	}()
	return r
}

// start runs a program and returns its pid and the channel on which its status will arrive, once.
func (r *reaper) start(path string, argv []string, attr *syscall.ProcAttr) (int, <-chan syscall.WaitStatus, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	pid, err := syscall.ForkExec(path, argv, attr)
	if err != nil {
		return 0, nil, err
	}
	status := make(chan syscall.WaitStatus, 1)
	r.waiting[pid] = status
	return pid, status, nil
}

func (r *reaper) collect() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, syscall.WNOHANG, nil)
		if errors.Is(err, syscall.EINTR) {
			continue
		}
		if err != nil || pid <= 0 {
			return
		}
		if receiver, ours := r.waiting[pid]; ours {
			delete(r.waiting, pid)
			receiver <- status
		} else {
			r.orphaned.Add(1)
			if r.orphans != nil {
				r.orphans(pid, status)
			}
		}
	}
}
