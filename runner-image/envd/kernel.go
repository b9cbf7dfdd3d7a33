package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
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
	clockBoottime       = 7
	procMagic           = 0x9fa0
	sysfsMagic          = 0x62656572
)

// statxNumber is the system call's, which is not the same on all.
var statxNumber = map[string]uintptr{"amd64": 332, "arm64": 291}[runtime.GOARCH]

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

// birthTime is when the inode of a folder was made, in nanoseconds since the epoch. Nobody can set it.
func birthTime(name string) (int64, error) {
	const (
		workingDirectory = ^uintptr(99) // -100
		wanted           = 0x800
	)
	var found struct {
		mask        uint32
		_           [76]byte
		seconds     int64
		nanoseconds uint32
		_           [164]byte
	}
	text, err := syscall.BytePtrFromString(name)
	if err != nil || statxNumber == 0 {
		return 0, errors.Join(err, syscall.ENOSYS)
	}
	_, _, errno := syscall.Syscall6(
		statxNumber, workingDirectory, uintptr(unsafe.Pointer(text)), 0, wanted, uintptr(unsafe.Pointer(&found)), 0,
	)
	if errno != 0 {
		return 0, fmt.Errorf("statx %s: %w", name, errno)
	}
	if found.mask&wanted == 0 {
		return 0, fmt.Errorf("the file system of %s does not tell a birth", name)
	}
	return found.seconds*1e9 + int64(found.nanoseconds), nil
}

// sinceBoot is what the clock says that nobody can set, in nanoseconds.
func sinceBoot() (int64, error) {
	var now syscall.Timespec
	if _, _, errno := syscall.Syscall(syscall.SYS_CLOCK_GETTIME, clockBoottime, uintptr(unsafe.Pointer(&now)), 0); errno != 0 {
		return 0, fmt.Errorf("the time since boot: %w", errno)
	}
	return now.Nano(), nil
}

// readKernelFile reads a file of procfs or sysfs, and no other that stands in its place.
func readKernelFile(name string, magic int64) (string, error) {
	file, err := os.Open(name)
	if err != nil {
		return "", err
	}
	defer file.Close()
	var system syscall.Statfs_t
	if err := syscall.Fstatfs(int(file.Fd()), &system); err != nil {
		return "", fmt.Errorf("the file system of %s: %w", name, err)
	}
	if system.Type != magic {
		return "", fmt.Errorf("%s is not the kernel's", name)
	}
	text, err := io.ReadAll(file)
	return string(text), err
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
