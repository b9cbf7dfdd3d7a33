package main

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

func TestLinksIntoAFolderAreCutAndOthersStay(t *testing.T) {
	root := t.TempDir()
	for _, name := range []string{"tests/sub", "app"} {
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
	link("c/expected", "app/d")
	link("/proc/self/cwd/../tests", "app/e")
	got, err := testFiles().cutLinks(cutLinksParams{Into: filepath.Join(root, "tests"), Root: root, Since: since, MaxEntries: 100})
	must(t, err)
	// What led through a link that is gone leads nowhere.
	if want := []string{filepath.Join(root, "app/c"), filepath.Join(root, "app/e")}; got.Count != 2 || !slices.Equal(got.Names, want) {
		t.Fatalf("cut %+v; want %v", got, want)
	}
	left, err := filepath.Glob(filepath.Join(root, "*/*"))
	must(t, err)
	for i := range left {
		left[i], _ = filepath.Rel(root, left[i])
	}
	if want := []string{"app/a-good", "app/b-broken", "app/d", "app/old", "app/own", "tests/inside", "tests/sub"}; !slices.Equal(left, want) {
		t.Fatalf("left %v; want %v", left, want)
	}
}
