package main

import (
	"errors"
	"io/fs"
	"os"
	"path"
	"path/filepath"
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
	Folders    []string `json:"folders"`    // of which only the names that they hold count
	Variables  []string `json:"variables"`  // of this container, whose values are paths too
	Outside    string   `json:"outside"`    // what a variable or a link leads to in there is the task's work
	User       string   `json:"user"`       // whose home counts too
	HomeNames  []string `json:"home_names"` // what of it
	Since      int64    `json:"since"`      // nanoseconds since the epoch
	MaxEntries int      `json:"max_entries"`
	Caches     []string `json:"caches"`
}

func (p changedParams) isWork(name string) bool { return p.Outside != "" && isBelow(name, p.Outside) }

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

// changed counts files and links below the paths whose inode changed since a time, and folders that lost or changed a name without one. A
// path that is a link counts itself and nothing behind it: merged folders would be counted twice.
//
// A changed file in a folder named in Caches is removed and not counted: the programs that use such a folder fill it again by themselves.
func (s *fileStore) changed(p changedParams) (changedResult, error) {
	if p.MaxEntries < 1 || len(p.Paths) > maxPaths || len(p.Folders)+len(p.Variables)+len(p.HomeNames) > maxPaths {
		return changedResult{}, failf(kindBadRequest, "changed without a limit, or with more than %d paths", maxPaths)
	}
	c := changes{
		changedParams: p,
		limits:        &walkLimits{maxEntries: p.MaxEntries, pristine: newPristine(p.Since, s.firstStart)},
		result:        changedResult{Names: []string{}},
		explained:     map[string]bool{},
	}
	for _, given := range append(slices.Clone(p.Paths), s.ownPaths(p)...) {
		if err := c.below(given); err != nil {
			return changedResult{}, err
		}
	}
	for _, given := range p.Folders {
		if info, err := os.Lstat(given); err == nil && c.isNew(info) {
			c.folders = append(c.folders, given)
		}
	}
	for _, folder := range c.folders {
		if !c.explained[folder] {
			c.result.add(folder + "/")
		}
	}
	if s.limits != resourceLimits() {
		// Any process of the same user may set those of envd, and all commands have them from it.
		c.result.add("the resource limits of commands")
	}
	c.result.Truncated = c.limits.truncated || c.limits.hidden > 0
	return c.result, nil
}

// ownPaths are those that only envd knows: of its environment, and of a user's home.
func (s *fileStore) ownPaths(p changedParams) []string {
	var found []string
	for _, name := range p.Variables {
		for item := range strings.SplitSeq(lookupEnv(s.environ, name), ":") {
			if path.IsAbs(item) && path.Clean(item) != "/" && !p.isWork(path.Clean(item)) {
				found = append(found, path.Clean(item))
			}
		}
	}
	who, err := s.users.resolve(p.User)
	if err != nil || !path.IsAbs(who.home) {
		return found
	}
	for _, name := range p.HomeNames {
		found = append(found, path.Join(who.home, name))
	}
	return found
}

type changes struct {
	changedParams
	limits    *walkLimits
	result    changedResult
	folders   []string        // with a new time
	explained map[string]bool // folders of which an entry was counted
}

func (c *changes) below(given string) error {
	start, err := cleanPath(given)
	if err != nil {
		return err
	}
	info, err := os.Lstat(start)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) || errors.Is(err, fs.ErrPermission) {
		return nil // an envd without root sees as much as the commands that it ran
	}
	if err != nil {
		return err
	}
	if !info.IsDir() {
		if c.isNew(info) || c.leadsToNew(start, info) {
			c.add(start)
		}
		return nil
	}
	if c.isNew(info) {
		c.folders = append(c.folders, start)
	}
	err = walk(start, c.limits, func(n node) error { c.visit(n, path.Join(start, n.rel)); return nil })
	if errors.Is(err, fs.ErrPermission) {
		if canEnter(info) {
			c.limits.hidden++
		}
		return nil
	}
	return err
}

func (c *changes) visit(n node, name string) {
	switch {
	case n.info.IsDir():
		if c.isNew(n.info) && !isInside(n.rel+"/x", c.Caches) && (isOfPrograms(n.name) || !c.holdsCache(n)) {
			c.folders = append(c.folders, name)
		}
	case c.isNew(n.info):
		if !isInside(n.rel, c.Caches) || n.parent.Remove(n.name) != nil {
			c.add(name)
		}
	case c.leadsToNew(name, n.info):
		c.add(name)
	}
}

func (c *changes) add(name string) {
	c.result.add(name)
	c.explained[path.Dir(name)] = true
}

func (c *changes) isNew(info fs.FileInfo) bool { return isSince(info, c.Since) }

// leadsToNew tells whether a link's file changed, wherever it is, but for the task's work and the kernel's files, which are empty.
func (c *changes) leadsToNew(name string, info fs.FileInfo) bool {
	if info.Mode()&fs.ModeSymlink == 0 {
		return false
	}
	file, err := os.Stat(name)
	if err != nil || !file.Mode().IsRegular() || file.Size() == 0 || !c.isNew(file) {
		return false
	}
	target, err := filepath.EvalSymlinks(name)
	return err == nil && !c.isWork(target)
}

// holdsCache tells whether a folder's time says nothing: the programs that use it make a cache in it by themselves.
func (c *changes) holdsCache(n node) bool {
	return slices.ContainsFunc(c.Caches, func(cache string) bool {
		_, err := n.parent.Lstat(path.Join(n.name, cache))
		return err == nil
	})
}

func isOfPrograms(name string) bool { return name == "bin" || name == "sbin" }

// resourceLimits are this process's own, all that the kernel knows.
func resourceLimits() (found [16]syscall.Rlimit) {
	for resource := range found {
		_ = syscall.Getrlimit(resource, &found[resource]) // one that is not known stays empty
	}
	return found
}

// isInside tells whether one of the folders of a relative path has one of the names.
func isInside(rel string, names []string) bool {
	folders := strings.Split(path.Dir(rel), "/")
	return slices.ContainsFunc(names, func(name string) bool { return slices.Contains(folders, name) })
}
