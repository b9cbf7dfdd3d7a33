package main

import (
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"syscall"
)

// notSearched are folders below the root where no link of a task's work is looked for: the kernel's, and those of the image's programs, where
// every changed link is counted anyway.
var notSearched = []string{"proc", "sys", "dev", "boot", "bin", "sbin", "lib", "lib32", "lib64", "libx32", "usr", "etc", "nix"}

type cutLinksParams struct {
	Into       string `json:"into"`
	Since      int64  `json:"since"` // nanoseconds since the epoch
	Root       string `json:"root"`
	MaxEntries int    `json:"max_entries"`
}

type inode struct{ dev, ino uint64 }

func inodeOf(info fs.FileInfo) inode {
	if sys, ok := info.Sys().(*syscall.Stat_t); ok {
		return inode{uint64(sys.Dev), sys.Ino}
	}
	return inode{}
}

// cutLinks removes links that were made since a time and lead to a folder or to what it holds, whatever way they take: made before the folder
// was there, they would show its files where the maker's own are looked for.
func (s *fileStore) cutLinks(p cutLinksParams) (changedResult, error) {
	into, err := cleanPath(p.Into)
	if err != nil {
		return changedResult{}, err
	}
	root, err := cleanPath(p.Root)
	if err != nil {
		return changedResult{}, err
	}
	info, err := os.Lstat(into)
	if err != nil {
		return changedResult{}, err
	}
	targets := map[inode]bool{inodeOf(info): true}
	err = walk(into, &walkLimits{maxEntries: p.MaxEntries}, func(n node) error { targets[inodeOf(n.info)] = true; return nil })
	if err != nil {
		return changedResult{}, err
	}
	result := changedResult{Names: []string{}}
	limits := &walkLimits{maxEntries: p.MaxEntries}
	err = walk(root, limits, func(n node) error {
		name := path.Join(root, n.rel)
		sys, ok := n.info.Sys().(*syscall.Stat_t)
		switch {
		case !ok:
		case n.info.IsDir() && (name == into || (root == "/" && slices.Contains(notSearched, n.rel))):
			return errSkipFolder
		case n.info.Mode()&fs.ModeSymlink != 0 && sys.Ctim.Nano() >= p.Since && leadsTo(name, targets):
			if err := n.parent.Remove(n.name); err != nil {
				return err
			}
			result.add(name)
		}
		return nil
	})
	result.Truncated = limits.truncated
	return result, err
}

// leadsTo tells whether a link ends at one of the targets. A way through the working directory of whoever reads it ends elsewhere for envd
// than for the reader, and nobody takes it by chance.
func leadsTo(link string, targets map[inode]bool) bool {
	if text, err := os.Readlink(link); err == nil && strings.HasPrefix(text, "/proc/") && slices.Contains(strings.Split(text, "/"), "cwd") {
		return true
	}
	info, err := os.Stat(link)
	return err == nil && targets[inodeOf(info)]
}
