package main

import (
	"errors"
	"os"
	"syscall"
	"unsafe"
)

// Numbers that package syscall does not name; the same on amd64 and arm64.
const (
	prSetDumpable       = 4
	prSetChildSubreaper = 36
	fionread            = 0x541b
	capSetGID           = 6
	capSetUID           = 7
	capabilityVersion3  = 0x20080522
)

func prctl(option, value uintptr) error {
	if _, _, errno := syscall.RawSyscall6(syscall.SYS_PRCTL, option, value, 0, 0, 0, 0); errno != 0 {
		return errno
	}
	return nil
}

// hasSetIDCapabilities tells whether the process may change its uid and gid: a root without capabilities may not.
func hasSetIDCapabilities() bool {
	header := struct {
		version uint32
		pid     int32
	}{version: capabilityVersion3}
	var data [2]struct{ effective, permitted, inheritable uint32 }
	_, _, errno := syscall.RawSyscall(syscall.SYS_CAPGET, uintptr(unsafe.Pointer(&header)), uintptr(unsafe.Pointer(&data[0])), 0)
	if errno != 0 {
		return false
	}
	const needed = 1<<capSetGID | 1<<capSetUID
	return data[0].effective&needed == needed
}

// unreadBytes is how much waits in a pipe; 0 when the kernel does not tell.
func unreadBytes(pipe *os.File) int {
	raw, err := pipe.SyscallConn()
	if err != nil {
		return 0
	}
	var n int32
	var errno syscall.Errno
	err = raw.Control(func(fd uintptr) {
		_, _, errno = syscall.Syscall(syscall.SYS_IOCTL, fd, fionread, uintptr(unsafe.Pointer(&n)))
	})
	if err != nil || errno != 0 {
		return 0
	}
	return int(n)
}

// pipe makes a pipe whose own end belongs to envd's poller and whose other end is an ordinary blocking descriptor for a child.
func pipe(ownName string, ownReads bool) (own *os.File, child int, err error) {
	var fds [2]int
	if err := syscall.Pipe2(fds[:], syscall.O_CLOEXEC); err != nil {
		return nil, -1, err
	}
	ownFD, childFD := fds[0], fds[1]
	if !ownReads {
		ownFD, childFD = fds[1], fds[0]
	}
	if err := syscall.SetNonblock(ownFD, true); err != nil {
		syscall.Close(ownFD)
		syscall.Close(childFD)
		return nil, -1, err
	}
	return os.NewFile(uintptr(ownFD), ownName), childFD, nil
}

// connectUnix connects to a listening unix socket without waiting for it.
//
// Package net is not used: it would be a third of the binary.
func connectUnix(path string) (*os.File, error) {
	fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC|syscall.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	for {
		err = syscall.Connect(fd, &syscall.SockaddrUnix{Name: path})
		if !errors.Is(err, syscall.EINTR) {
			break
		}
	}
	if err != nil {
		syscall.Close(fd)
		return nil, err
	}
	return os.NewFile(uintptr(fd), path), nil
}
