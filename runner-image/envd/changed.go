package main

import (
	"errors"
	"io/fs"
	"os"
	"path"
	"syscall"
)

// maxChangedNames bounds the names in an answer; the count goes on.
const maxChangedNames = 10

type changedParams struct {
	Paths      []string `json:"paths"`
	Since      int64    `json:"since"` // nanoseconds since the epoch
	MaxEntries int      `json:"max_entries"`
}

type changedResult struct {
	Count     int      `json:"count"`
	Names     []string `json:"names"`
	Truncated bool     `json:"truncated"`
}

// changed counts files and links below the paths whose inode changed since a time. The inode's own time is asked for, since any process may
// set the other two; setting the clock needs a capability that no container of a trial has. A path that is a link or not there counts for
// nothing: merged folders would be counted twice.
func (s *fileStore) changed(p changedParams) (changedResult, error) {
	if p.MaxEntries < 1 || len(p.Paths) > 100 {
		return changedResult{}, failf(kindBadRequest, "changed without a limit, or with %d paths", len(p.Paths))
	}
	result := changedResult{Names: []string{}}
	limits := &walkLimits{maxEntries: p.MaxEntries}
	look := func(name string, info fs.FileInfo) {
		sys, ok := info.Sys().(*syscall.Stat_t)
		if !ok || info.IsDir() || sys.Ctim.Nano() < p.Since {
			return
		}
		result.Count++
		if text := bounded(name); text != nil && len(result.Names) < maxChangedNames {
			result.Names = append(result.Names, *text)
		}
	}
	for _, given := range p.Paths {
		start, err := cleanPath(given)
		if err != nil {
			return changedResult{}, err
		}
		info, err := os.Lstat(start)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
			continue
		}
		if err != nil {
			return changedResult{}, err
		}
		if !info.IsDir() {
			if info.Mode().IsRegular() {
				look(start, info)
			}
			continue
		}
		if err := walk(start, limits, func(n node) error { look(path.Join(start, n.rel), n.info); return nil }); err != nil {
			return changedResult{}, err
		}
	}
	result.Truncated = limits.truncated
	return result, nil
}
