package main

import (
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"syscall"
	"time"
)

// maxLinkHops is more than the kernel follows: a reader may resolve a path by itself first, without that limit.
const maxLinkHops = 1000

type cutLinksParams struct {
	Into       string   `json:"into"`
	Since      int64    `json:"since"` // nanoseconds since the epoch
	Root       string   `json:"root"`
	Skip       []string `json:"skip"`    // folders whose changes are counted otherwise
	Foreign    []string `json:"foreign"` // folders that somebody outside this container may still change
	MaxEntries int      `json:"max_entries"`
	MaxSeconds int      `json:"max_seconds"`
}

type inode struct{ dev, ino uint64 }

func inodeOf(info fs.FileInfo) inode {
	if sys, ok := info.Sys().(*syscall.Stat_t); ok {
		return inode{uint64(sys.Dev), sys.Ino}
	}
	return inode{}
}

// cutLinks removes links that were made since a time and lead to a folder or to what it holds, whatever way they take: made before the folder
// was there, they would show its files where the maker's own are looked for. Truncated says that one may be left where envd could not look.
func (s *fileStore) cutLinks(p cutLinksParams) (changedResult, error) {
	into, err := cleanPath(p.Into)
	if err != nil {
		return changedResult{}, err
	}
	root, err := cleanPath(p.Root)
	if err != nil {
		return changedResult{}, err
	}
	if p.MaxEntries < 1 || p.MaxSeconds < 1 || len(p.Skip) > maxPaths || len(p.Foreign) > maxPaths {
		return changedResult{}, failf(kindBadRequest, "cut-links without limits, or with %d and %d paths", len(p.Skip), len(p.Foreign))
	}
	info, err := os.Lstat(into)
	if err != nil {
		return changedResult{}, err
	}
	targets, limits := map[inode]bool{inodeOf(info): true}, &walkLimits{maxEntries: p.MaxEntries}
	if err := walk(into, limits, func(n node) error { targets[inodeOf(n.info)] = true; return nil }); err != nil {
		return changedResult{}, err
	}
	start, err := openFolder(root)
	if err != nil {
		return changedResult{}, err
	}
	defer start.Close()
	cutter := linkCutter{
		into:     into,
		targets:  targets,
		foreign:  p.Foreign,
		since:    p.Since,
		skip:     append([]string{into, "/proc", "/sys"}, p.Skip...),
		left:     p.MaxEntries,
		end:      time.Now().Add(time.Duration(p.MaxSeconds) * time.Second),
		result:   changedResult{Names: []string{}, Truncated: limits.truncated},
		pristine: newPristine(p.Since, s.firstStart),
	}
	cutter.folder(start, root, 0)
	return cutter.result, nil
}

type linkCutter struct {
	into     string
	targets  map[inode]bool // into and all that it holds
	foreign  []string
	since    int64
	skip     []string
	left     int // entries that may still be looked at
	end      time.Time
	result   changedResult
	pristine *pristine // no link below these folders was made since
}

// folder looks at what a folder holds.
func (c *linkCutter) folder(folder *os.Root, name string, depth int) {
	dir, err := folder.Open(".")
	if err != nil {
		c.result.Truncated = true
		return
	}
	defer dir.Close()
	for {
		entries, err := readTyped(folder, dir)
		if err != nil {
			c.result.Truncated = true
			return
		}
		if len(entries) == 0 {
			return
		}
		for _, entry := range entries {
			if c.left == 0 || time.Now().After(c.end) {
				c.result.Truncated = true
				return
			}
			c.left--
			switch entry.kind {
			case fs.ModeSymlink:
				c.link(folder, entry.name, path.Join(name, entry.name))
			case fs.ModeDir:
				c.below(folder, entry.name, path.Join(name, entry.name), depth+1)
			}
		}
	}
}

func (c *linkCutter) below(parent *os.Root, base, name string, depth int) {
	if slices.Contains(c.skip, name) {
		return
	}
	if depth >= maxDepth {
		c.result.Truncated = true
		return
	}
	folder, err := parent.OpenRoot(base)
	if err == nil {
		defer folder.Close()
		if info, err := folder.Stat("."); err != nil || !c.pristine.holds(info) {
			c.folder(folder, name, depth)
		}
		return
	}
	// Where envd is not root, images have folders that it may not list. One that is as the image made it, and that nobody else of this user
	// can enter either, holds nothing of the agent.
	if info, err := parent.Lstat(base); err == nil {
		c.result.Truncated = c.result.Truncated || c.isNew(info) || canEnter(info)
	}
}

func (c *linkCutter) link(parent *os.Root, base, name string) {
	info, err := parent.Lstat(base)
	if err != nil || info.Mode()&fs.ModeSymlink == 0 || !c.isNew(info) {
		return
	}
	switch text, err := parent.Readlink(base); {
	case err != nil || isDeviceFolders(name, text):
	case len(name) >= maxPathBytes:
		c.result.Truncated = true // no path leads there, but descriptors do
	default:
		switch c.judge(name) {
		case linkLeads:
			_ = parent.Remove(base) // counted also where it stays
			c.result.add(name)
		case linkUnknown:
			c.result.Truncated = true
		}
	}
}

func (c *linkCutter) isNew(info fs.FileInfo) bool { return isSince(info, c.since) }

type linkVerdict int

const (
	linkHarmless linkVerdict = iota
	linkLeads
	linkUnknown
)

// judge tells whether a link leads to the targets for whoever reads it, now or once what is missing on its way is there. It goes the way
// itself: the kernel tells envd only where envd would get to at this moment.
func (c *linkCutter) judge(link string) linkVerdict {
	current, rest := path.Dir(link), []string{path.Base(link)}
	for hops := 0; len(rest) > 0; {
		part := rest[0]
		rest = rest[1:]
		if current == "/proc" && isProcess(part) {
			isOwn := part == "self" || part == "thread-self"
			names := slices.DeleteFunc(slices.Clone(rest), func(name string) bool { return name == "" || name == "." })
			if !isOwn || len(names) < 2 || names[0] != "root" {
				return ofProcess(strings.Join(names, "/"), isOwn)
			}
			current, rest = "/", names[1:] // the root is the same for all processes of this container
			continue
		}
		next := path.Join(current, part)
		if c.isForeign(next) && !c.isForeign(link) {
			return linkLeads // or may, by then
		}
		text, err := os.Readlink(next)
		if err != nil {
			current = next
			continue
		}
		if hops++; hops > maxLinkHops {
			return linkUnknown
		}
		if next == link && hops > 1 && len(rest) == 0 {
			return linkHarmless // it leads to itself
		}
		rest = append(strings.Split(text, "/"), rest...)
		if path.IsAbs(text) {
			current = "/"
		}
	}
	if info, err := os.Stat(link); isBelow(current, c.into) || (err == nil && c.targets[inodeOf(info)]) {
		return linkLeads
	}
	return linkHarmless
}

func (c *linkCutter) isForeign(name string) bool {
	return slices.ContainsFunc(c.foreign, func(folder string) bool { return isBelow(name, folder) })
}

// ofProcess judges a link to a file in a process's folder of /proc. Such a file is of whatever process reads the link, such as what it has
// open, or of one that is still to come. Outputs are no such thing, since images write logs to them, nor are lists of mounts.
func ofProcess(file string, isOwn bool) linkVerdict {
	if slices.Contains([]string{"", "fd/1", "fd/2", "mounts", "mountinfo"}, file) || (isOwn && (file == "root" || file == "fd")) {
		return linkHarmless
	}
	return linkLeads
}

// isDeviceFolders tells whether a link is one that every folder of devices has, also that of a root that the task makes.
func isDeviceFolders(name, text string) bool {
	number := map[string]string{"fd": "", "stdin": "/0", "stdout": "/1", "stderr": "/2"}
	fd, ok := number[path.Base(name)]
	return ok && path.Base(path.Dir(name)) == "dev" && text == "/proc/self/fd"+fd
}

func isProcess(name string) bool {
	return name == "self" || name == "thread-self" || isDigits(name)
}

func isBelow(name, folder string) bool {
	return name == folder || strings.HasPrefix(name, strings.TrimSuffix(folder, "/")+"/")
}

func isDigits(text string) bool {
	return text != "" && strings.Trim(text, "0123456789") == ""
}
