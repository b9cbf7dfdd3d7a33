package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strconv"
	"strings"
	"time"
)

const (
	// startMargin is for what is not exact in the time of the first process's start: ticks of 10 ms, and clocks read one after the other.
	startMargin = 2 * time.Second
	// userHZ is what the kernel counts process starts in, on all architectures that envd is built for.
	userHZ = 100
)

// pristine tells which folders of the container are as its image made them: no name below was added, removed or renamed, and no inode
// below was changed, at any depth. Most folders are, so that few files have to be asked for their times. The nil value knows of none.
//
// On overlayfs one time of one folder says so:
//   - Whatever changes is an inode of the upper layer: a file with other content, mode or owner, a new name, or the whiteout of one that
//     is gone. The kernel first puts all its parents into the upper layer too, so nothing below a folder that is not there has changed.
//   - An inode of the upper layer is no older than that layer's root, the container's "/", whose birth the kernel tells. Neither a birth
//     nor the time that an inode changed can be set. So a folder that changed before that birth is not in the upper layer.
//
// What this rests on is looked at for each request, and where something is else, or cannot be looked at, no folder is pristine:
//   - The root is an overlay of the kernel's own, the one file system with this type, and the whole of it.
//   - It has no index of inodes. With one, a change under one name of a file of the image shows under its other names as well, whose
//     folders stay as they were.
//   - The folder is in that overlay, and neither is a mount point nor holds one: what is mounted changes by itself.
//   - The clock was not set back since, or what changed would be older than the birth. The first process's start, which the kernel keeps by
//     a clock that nobody can set, bounds the time as well: as of envd's start, and as of now.
type pristine struct {
	device uint64
	before int64          // nanoseconds since the epoch; a folder that changed at this time or later may be in the upper layer
	mounts map[inode]bool // mount points and all their parents
}

// newPristine looks at the container as it is now. A folder that changed since the given time is never pristine. firstStart is what
// firstProcessStart gave when envd started.
func newPristine(since, firstStart int64) *pristine {
	if firstStart == 0 {
		return nil
	}
	start, err := firstProcessStart()
	if err != nil {
		return nil
	}
	birth, err := birthTime("/")
	if err != nil {
		return nil
	}
	text, err := readKernelFile("/proc/self/mountinfo", procMagic)
	if err != nil {
		return nil
	}
	mounts, err := parseMounts(text)
	if err != nil || !isPlainOverlay(mounts) {
		return nil
	}
	info, err := os.Lstat("/")
	if err != nil {
		return nil
	}
	p := &pristine{device: inodeOf(info).dev, before: min(since, birth, start, firstStart), mounts: map[inode]bool{inodeOf(info): true}}
	for _, m := range mounts {
		for name := m.point; name != "/"; name = path.Dir(name) {
			info, err := os.Lstat(name)
			if err != nil {
				return nil
			}
			p.mounts[inodeOf(info)] = true
		}
	}
	return p
}

// holds tells whether a folder is pristine. The information is best of the open folder: what is listed then is what was judged.
func (p *pristine) holds(folder fs.FileInfo) bool {
	if p == nil || !folder.IsDir() {
		return false
	}
	id := inodeOf(folder)
	return id.dev == p.device && !isSince(folder, p.before) && !p.mounts[id]
}

// firstProcessStart is a time before the container's first process started, by the clock as it is set now, in nanoseconds since the epoch.
func firstProcessStart() (int64, error) {
	text, err := readKernelFile("/proc/1/stat", procMagic)
	if err != nil {
		return 0, err
	}
	started, err := parseStart(text)
	if err != nil {
		return 0, err
	}
	now := time.Now().UnixNano() // first: a delay in between makes the answer earlier, not later
	boot, err := sinceBoot()
	if err != nil {
		return 0, err
	}
	return now - (boot - started) - int64(startMargin), nil
}

// parseStart takes the time of a process's start, in nanoseconds since boot, from its stat (proc_pid_stat(5)). The program's name in it is
// the program's choice, with spaces and parentheses.
func parseStart(stat string) (int64, error) {
	const field, afterName = 22, 3
	fields := strings.Fields(stat[strings.LastIndexByte(stat, ')')+1:])
	if !strings.Contains(stat, ")") || len(fields) <= field-afterName {
		return 0, fmt.Errorf("the stat of a process is %q", stat)
	}
	ticks, err := strconv.ParseInt(fields[field-afterName], 10, 64)
	if err != nil || ticks < 0 || ticks > 1<<32*userHZ {
		return 0, fmt.Errorf("the stat of a process is %q", stat)
	}
	return ticks * (int64(time.Second) / userHZ), nil
}

type mount struct {
	root    string // of the file system, what of it is mounted
	point   string
	system  string   // type of file system
	options []string // of the file system, not of this mount
}

var errMounts = errors.New("the list of mounts is not as expected")

// parseMounts reads a mountinfo (proc_pid_mountinfo(5)).
func parseMounts(text string) ([]mount, error) {
	var found []mount
	for line := range strings.Lines(text) {
		own, super, ok := strings.Cut(strings.TrimSuffix(line, "\n"), " - ")
		first, last := strings.Split(own, " "), strings.SplitN(super, " ", 3)
		if !ok || len(first) < 6 || len(last) != 3 {
			return nil, errMounts
		}
		point := octalEscapes.Replace(first[4])
		if !path.IsAbs(point) {
			return nil, errMounts
		}
		found = append(found, mount{first[3], path.Clean(point), last[0], strings.Split(last[2], ",")})
	}
	return found, nil
}

// octalEscapes are those that the kernel makes in a path; a number sign is one at its start only, but harmless elsewhere.
var octalEscapes = strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`, `\043`, "#")

// isPlainOverlay tells whether exactly one file system is mounted at the root, and that is a whole overlay without an index of inodes.
func isPlainOverlay(mounts []mount) bool {
	var roots []mount
	for _, m := range mounts {
		if m.point == "/" {
			roots = append(roots, m)
		}
	}
	return len(roots) == 1 && roots[0].system == "overlay" && roots[0].root == "/" && !hasIndex(roots[0].options)
}

// hasIndex tells whether an overlay has an index of inodes, or may have one. The kernel names the option where it is not as the module's
// default is now.
func hasIndex(options []string) bool {
	for _, option := range options {
		if value, ok := strings.CutPrefix(option, "index="); ok {
			return value != "off"
		}
	}
	preset, err := readKernelFile("/sys/module/overlay/parameters/index", sysfsMagic)
	return err != nil || strings.TrimSpace(preset) != "N"
}
