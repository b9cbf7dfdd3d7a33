package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestLinksIntoAFolderAreCutAndOthersStay(t *testing.T) {
	root := t.TempDir()
	for _, name := range []string{"tests/sub", "app", "skipped"} {
		must(t, os.MkdirAll(filepath.Join(root, name), 0o755))
	}
	for _, name := range []string{"tests/sub/expected", "app/own"} {
		must(t, os.WriteFile(filepath.Join(root, name), nil, 0o644))
	}
	link := func(target, name string) { must(t, os.Symlink(target, filepath.Join(root, name))) }
	link("../tests", "app/old")
	time.Sleep(20 * time.Millisecond)
	since := time.Now().Add(-10 * time.Millisecond).UnixNano()
	link("sub", "tests/inside")
	link("own", "app/a-good")
	link("nothing", "app/b-broken")
	link("../tests/sub", "app/c")
	link("/proc/self/cwd/../tests", "app/e")
	link("../tests", "skipped/f")
	got, err := testFiles().cutLinks(cutLinksParams{
		Into: filepath.Join(root, "tests"), Root: root, Since: since, Skip: []string{filepath.Join(root, "skipped")}, MaxEntries: 100, MaxSeconds: 9,
	})
	must(t, err)
	slices.Sort(got.Names)
	if want := []string{filepath.Join(root, "app/c"), filepath.Join(root, "app/e")}; got.Truncated || got.Count != 2 || !slices.Equal(got.Names, want) {
		t.Fatalf("cut %+v; want %v", got, want)
	}
	left, err := filepath.Glob(filepath.Join(root, "*/*"))
	must(t, err)
	for i := range left {
		left[i], _ = filepath.Rel(root, left[i])
	}
	if want := []string{"app/a-good", "app/b-broken", "app/old", "app/own", "skipped/f", "tests/inside", "tests/sub"}; !slices.Equal(left, want) {
		t.Fatalf("left %v; want %v", left, want)
	}
}

func TestAFolderTooDeepOrOneEntryTooManyIsTold(t *testing.T) {
	root := t.TempDir()
	must(t, os.MkdirAll(filepath.Join(root, "tests"), 0o755))
	cut := func(entries int) bool {
		got, err := testFiles().cutLinks(cutLinksParams{Into: filepath.Join(root, "tests"), Root: root, MaxEntries: entries, MaxSeconds: 9})
		must(t, err)
		return got.Truncated
	}
	if cut(1) {
		t.Fatal("told although all was looked at")
	}
	must(t, os.Mkdir(filepath.Join(root, "app"), 0o755))
	if !cut(1) || cut(2) {
		t.Fatal("one entry too many is not told, or none is told")
	}
	must(t, os.MkdirAll(filepath.Join(root, strings.Repeat("d/", maxDepth)), 0o755))
	if !cut(10 * maxDepth) {
		t.Fatal("a folder too deep is not told")
	}
}

func TestALinkToWhatItsReaderHasIsTheReaders(t *testing.T) {
	folder := t.TempDir()
	link := filepath.Join(folder, "link")
	for target, want := range map[string]bool{
		"/proc/self/cwd":                    true,
		"/proc/4242/fd/7":                   true,
		"/dev/stdin":                        true,
		"/proc/self/root/proc/self/cwd/x":   true,
		"/proc/self/../self/environ":        true,
		"/proc/thread-self/fd/./3":          true,
		"/dev/stdout":                       false,
		"/proc/self/fd/2":                   false,
		"/proc/self/root/etc/hostname":      false,
		"/proc/self":                        false,
		"/proc/cpuinfo":                     false,
		"/proc/self/mounts":                 false,
		"/var/self/cwd":                     false,
		"../../../../../../../proc/1/cwd/x": true,
		"link":                              false,
	} {
		must(t, os.Symlink(target, link))
		if got := isReaders(link); got != want {
			t.Errorf("%s: %v", target, got)
		}
		must(t, os.Remove(link))
	}
}
