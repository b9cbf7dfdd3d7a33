package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

func TestChangedSeesReplacedMovedAndForgedTimesAndNothingElse(t *testing.T) {
	dir := t.TempDir()
	bin, usr := filepath.Join(dir, "bin"), filepath.Join(dir, "usr")
	must(t, os.MkdirAll(filepath.Join(bin, "sub"), 0o755))
	for _, name := range []string{"same", "touched", "sub/moved-away"} {
		must(t, os.WriteFile(filepath.Join(bin, name), []byte("old"), 0o755))
	}
	must(t, os.Symlink(bin, usr))
	time.Sleep(20 * time.Millisecond)
	since := time.Now().Add(-10 * time.Millisecond).UnixNano()
	past := time.Now().Add(-time.Hour)
	must(t, os.WriteFile(filepath.Join(bin, "touched"), []byte("new"), 0o755))
	must(t, os.Chtimes(filepath.Join(bin, "touched"), past, past))
	must(t, os.Rename(filepath.Join(bin, "sub/moved-away"), filepath.Join(bin, "moved-here")))
	must(t, os.Symlink("same", filepath.Join(bin, "link")))
	given := changedParams{Paths: []string{bin, usr, filepath.Join(dir, "none"), filepath.Join(bin, "touched")}, Since: since, MaxEntries: 100}
	got, err := testFiles().changed(given)
	must(t, err)
	want := []string{"link", "moved-here", "touched", "touched", "sub/"}
	for i := range want {
		want[i] = bin + "/" + want[i]
	}
	if got.Count != len(want) || !slices.Equal(got.Names, want) || got.Truncated {
		t.Fatalf("changed = %+v; want %v", got, want)
	}
	given.MaxEntries = 2
	if cut, err := testFiles().changed(given); err != nil || !cut.Truncated {
		t.Fatalf("changed = %+v, %v; want truncated", cut, err)
	}
	if _, err := testFiles().changed(changedParams{Paths: []string{"bin"}, MaxEntries: 1}); kindOfError(err) != kindBadRequest {
		t.Fatalf("changed of a relative path = %v; want %s", err, kindBadRequest)
	}
}

func TestChangedCountsALinkInThePlaceOfAFolderOrFile(t *testing.T) {
	dir := t.TempDir()
	bin, preload := filepath.Join(dir, "bin"), filepath.Join(dir, "ld.so.preload")
	must(t, os.Mkdir(filepath.Join(dir, "own"), 0o755))
	since := time.Now().Add(-time.Second).UnixNano()
	must(t, os.Symlink("own", bin))
	must(t, os.Symlink("own/preload", preload))
	got, err := testFiles().changed(changedParams{Paths: []string{bin, preload}, Since: since, MaxEntries: 10})
	must(t, err)
	if got.Count != 2 || !slices.Equal(got.Names, []string{bin, preload}) {
		t.Fatalf("changed = %+v; want both links", got)
	}
}

func TestChangedRemovesWhatIsNewInACache(t *testing.T) {
	lib := t.TempDir()
	must(t, os.MkdirAll(filepath.Join(lib, "p/__pycache__/deep"), 0o755))
	for _, name := range []string{"p/__pycache__/old.pyc", "p/module.py"} {
		must(t, os.WriteFile(filepath.Join(lib, name), nil, 0o644))
	}
	time.Sleep(20 * time.Millisecond)
	since := time.Now().Add(-10 * time.Millisecond).UnixNano()
	for _, name := range []string{"p/__pycache__/new.pyc", "p/__pycache__/deep/new.pyc", "p/own.pyc"} {
		must(t, os.WriteFile(filepath.Join(lib, name), nil, 0o644))
	}
	must(t, os.Symlink("p", filepath.Join(lib, "__pycache__"))) // is in no cache itself
	got, err := testFiles().changed(changedParams{Paths: []string{lib}, Since: since, MaxEntries: 100, Caches: []string{"__pycache__"}})
	must(t, err)
	if want := []string{filepath.Join(lib, "__pycache__"), filepath.Join(lib, "p/own.pyc")}; got.Count != 2 || !slices.Equal(got.Names, want) {
		t.Fatalf("changed = %+v; want %v", got, want)
	}
	left, err := filepath.Glob(filepath.Join(lib, "p/__pycache__/*.pyc"))
	must(t, err)
	if want := []string{filepath.Join(lib, "p/__pycache__/old.pyc")}; !slices.Equal(left, want) {
		t.Fatalf("left in the cache: %v; want %v", left, want)
	}
}

func TestChangedSeesWhatIsGoneAndWhatLiesElsewhere(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	for _, name := range []string{"bin", "lib/python", "lib/used/__pycache__", "bin/__pycache__", "opt", "work", "dev", "var", "home"} {
		must(t, os.MkdirAll(at(name), 0o755))
	}
	for _, name := range []string{"bin/tool", "lib/python/module", "lib/used/module", "opt/real", "work/product", "dev/fd", "var/more"} {
		must(t, os.WriteFile(at(name), []byte("old"), 0o755))
	}
	must(t, os.Symlink(at("opt/real"), at("bin/linked")))
	must(t, os.Symlink(at("work/product"), at("bin/product")))
	must(t, os.Symlink("/proc/self/mounts", at("lib/mtab")))
	time.Sleep(20 * time.Millisecond)
	given := changedParams{
		Paths: []string{at("bin"), at("lib")}, Folders: []string{at("dev")}, Variables: []string{"MORE", "NONE"}, Outside: at("work"),
		User: "tester", HomeNames: []string{".profile"}, Caches: []string{"__pycache__"},
		Since: time.Now().Add(-10 * time.Millisecond).UnixNano(), MaxEntries: 100,
	}
	must(t, os.WriteFile(at("passwd"), []byte("tester:x:4242:4242::"+at("home")+":/bin/sh\n"), 0o644))
	files := testFiles()
	files.users.passwdPath = at("passwd")
	files.environ = []string{"MORE=relative:" + at("var") + ":" + at("work") + ":/"}
	changed := func() []string {
		got, err := files.changed(given)
		must(t, err)
		names := []string{}
		for _, name := range got.Names {
			names = append(names, strings.TrimPrefix(name, dir+"/"))
		}
		return names
	}
	if got := changed(); len(got) != 0 {
		t.Fatalf("changed = %v before anything did", got)
	}
	for _, name := range []string{"bin/tool", "lib/python/module", "lib/used/module", "dev/fd", "var/more"} {
		must(t, os.Remove(at(name)))
	}
	for _, name := range []string{"opt/real", "work/product", "work/new", "lib/used/__pycache__/x.pyc", "dev/shm", "home/.profile"} {
		must(t, os.WriteFile(at(name), []byte("new"), 0o755))
	}
	// The folder of a cache says nothing by its time, unless programs are in it.
	want := []string{"bin/linked", "home/.profile", "lib/python/", "var/", "dev/"}
	if got := changed(); !slices.Equal(got, want) {
		t.Fatalf("changed = %v; want %v", got, want)
	}
	must(t, os.Remove(at("bin/linked")))
	if got := changed(); !slices.Contains(got, "bin/") {
		t.Fatalf("changed = %v; a folder of programs lost one", got)
	}
	files.limits[syscall.RLIMIT_CORE].Cur++
	if got := changed(); !slices.Contains(got, "the resource limits of commands") {
		t.Fatalf("changed = %v; limits are others", got)
	}
}
