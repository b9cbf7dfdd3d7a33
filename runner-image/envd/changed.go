package main

import (
	"errors"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"syscall"
)

// maxChangedNames bounds the names in an answer; the count goes on.
const maxChangedNames = 10

// maxPaths bounds the folders that one request names.
const maxPaths = 400

type changedParams struct {
	Paths      []string `json:"paths"`
	Since      int64    `json:"since"` // nanoseconds since the epoch
	MaxEntries int      `json:"max_entries"`
	Caches     []string `json:"caches"`
}

type changedResult struct {
	Count     int      `json:"count"`
	Names     []string `json:"names"`
	Truncated bool     `json:"truncated"`
}

func (r *changedResult) add(name string) {
	r.Count++
	if text := bounded(name); text != nil && len(r.Names) < maxChangedNames {
		r.Names = append(r.Names, *text)
	}
}

// changed counts files and links below the paths whose inode changed since a time. The inode's own time is asked for, since any process may
// set the other two; setting the clock needs a capability that no container of a trial has. A path that is a link counts itself and nothing
// behind it: merged folders would be counted twice.
//
// A changed file in a folder named in Caches is removed and not counted: the programs that use such a folder fill it again by themselves.
func (s *fileStore) changed(p changedParams) (changedResult, error) {
	if p.MaxEntries < 1 || len(p.Paths) > maxPaths {
		return changedResult{}, failf(kindBadRequest, "changed without a limit, or with %d paths", len(p.Paths))
	}
	result := changedResult{Names: []string{}}
	limits := &walkLimits{maxEntries: p.MaxEntries}
	isNew := func(info fs.FileInfo) bool {
		sys, ok := info.Sys().(*syscall.Stat_t)
		return ok && !info.IsDir() && sys.Ctim.Nano() >= p.Since
	}
	for _, given := range p.Paths {
		start, err := cleanPath(given)
		if err != nil {
			return changedResult{}, err
		}
		info, err := os.Lstat(start)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) || errors.Is(err, fs.ErrPermission) {
			continue // an envd without root sees as much as the commands that it ran
		}
		if err != nil {
			return changedResult{}, err
		}
		if !info.IsDir() {
			if isNew(info) {
				result.add(start)
			}
			continue
		}
		err = walk(start, limits, func(n node) error {
			if !isNew(n.info) || (isInside(n.rel, p.Caches) && n.parent.Remove(n.name) == nil) {
				return nil
			}
			result.add(path.Join(start, n.rel))
			return nil
		})
		if errors.Is(err, fs.ErrPermission) && canEnter(info) {
			limits.hidden++
		}
		if err != nil && !errors.Is(err, fs.ErrPermission) {
			return changedResult{}, err
		}
	}
	result.Truncated = limits.truncated || limits.hidden > 0
	return result, nil
}

// isInside tells whether one of the folders of a relative path has one of the names.
func isInside(rel string, names []string) bool {
	folders := strings.Split(path.Dir(rel), "/")
	return slices.ContainsFunc(names, func(name string) bool { return slices.Contains(folders, name) })
}
