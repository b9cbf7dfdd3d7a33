package main

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"syscall"
	"time"
)

const (
	maxLinkHops = 40
	// dirBatch bounds how many entries of a folder are in memory at once: the folder's size is the agent's choice.
	dirBatch = 1024
)

type cutLinksParams struct {
	Into       string   `json:"into"`
	Since      int64    `json:"since"` // nanoseconds since the epoch
	Root       string   `json:"root"`
	Skip       []string `json:"skip"` // folders whose changes are counted otherwise
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
	if p.MaxEntries < 1 || p.MaxSeconds < 1 || len(p.Skip) > 100 {
		return changedResult{}, failf(kindBadRequest, "cut-links without limits, or with %d paths", len(p.Skip))
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
		targets: targets,
		since:   p.Since,
		skip:    append([]string{into, "/proc", "/sys"}, p.Skip...),
		left:    p.MaxEntries,
		end:     time.Now().Add(time.Duration(p.MaxSeconds) * time.Second),
		result:  changedResult{Names: []string{}, Truncated: limits.truncated},
	}
	cutter.folder(start, root, 0)
	return cutter.result, nil
}

type linkCutter struct {
	targets map[inode]bool
	since   int64
	skip    []string
	left    int // entries that may still be looked at
	end     time.Time
	result  changedResult
}

// folder looks at what a folder holds. Only the types of entries are asked for, and more of links and folders alone: most entries are files.
func (c *linkCutter) folder(folder *os.Root, name string, depth int) {
	dir, err := folder.Open(".")
	if err != nil {
		c.unseen(folder)
		return
	}
	defer dir.Close()
	for {
		entries, err := dir.ReadDir(min(dirBatch, c.left+1))
		for _, entry := range entries {
			if c.left == 0 || time.Now().After(c.end) {
				c.result.Truncated = true
				return
			}
			c.left--
			switch entry.Type() {
			case fs.ModeSymlink:
				c.link(folder, entry.Name(), path.Join(name, entry.Name()))
			case fs.ModeDir:
				c.below(folder, entry.Name(), path.Join(name, entry.Name()), depth+1)
			}
		}
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			c.unseen(folder)
			return
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
		c.folder(folder, name, depth)
		return
	}
	if info, err := parent.Lstat(base); err == nil {
		c.result.Truncated = c.result.Truncated || c.isNew(info)
	}
}

// unseen notes a folder that cannot be listed. One that is as the image made it holds nothing of the agent: where envd is not root, images
// have some that it may not read.
func (c *linkCutter) unseen(folder *os.Root) {
	info, err := folder.Stat(".")
	c.result.Truncated = c.result.Truncated || err != nil || c.isNew(info)
}

func (c *linkCutter) link(parent *os.Root, base, name string) {
	info, err := parent.Lstat(base)
	if err != nil || info.Mode()&fs.ModeSymlink == 0 || !c.isNew(info) || !leadsTo(name, c.targets) {
		return
	}
	// Counted also where it stays.
	_ = parent.Remove(base)
	c.result.add(name)
}

func (c *linkCutter) isNew(info fs.FileInfo) bool {
	sys, ok := info.Sys().(*syscall.Stat_t)
	return ok && sys.Ctim.Nano() >= c.since
}

// leadsTo tells whether a link ends at one of the targets, or where another process than envd may end at one.
func leadsTo(link string, targets map[inode]bool) bool {
	if isReaders(link) {
		return true
	}
	info, err := os.Stat(link)
	return err == nil && targets[inodeOf(info)]
}

// isReaders tells whether a link ends at something of whatever process reads it, such as its working directory or a file that it has open: it
// ends elsewhere for envd. The outputs are no such thing, since images write logs to them, nor are lists of mounts.
func isReaders(link string) bool {
	current, rest := "/", strings.Split(link, "/")
	for hops := 0; len(rest) > 0 && hops <= maxLinkHops; {
		part := rest[0]
		rest = rest[1:]
		if current == "/proc" && (part == "self" || part == "thread-self" || isDigits(part)) {
			names := slices.DeleteFunc(slices.Clone(rest), func(name string) bool { return name == "" || name == "." })
			if file := strings.Join(names, "/"); !strings.HasPrefix(file, "root/") {
				return !slices.Contains([]string{"", "root", "fd/1", "fd/2", "mounts", "mountinfo"}, file)
			}
		}
		next := path.Join(current, part)
		text, err := os.Readlink(next)
		if err != nil {
			current = next
			continue
		}
		hops++
		rest = append(strings.Split(text, "/"), rest...)
		if path.IsAbs(text) {
			current = "/"
		}
	}
	return false
}

func isDigits(text string) bool {
	return text != "" && strings.Trim(text, "0123456789") == ""
}
