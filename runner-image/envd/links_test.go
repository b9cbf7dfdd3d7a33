package main

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
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

func TestALinkIsJudgedByWhereItsReaderGetsTo(t *testing.T) {
	folder := t.TempDir()
	must(t, os.MkdirAll(filepath.Join(folder, "tests"), 0o755))
	must(t, os.MkdirAll(filepath.Join(folder, "logs"), 0o755))
	must(t, os.Symlink(".", filepath.Join(folder, "here")))
	must(t, os.Symlink("round/x", filepath.Join(folder, "round")))
	cutter := linkCutter{into: filepath.Join(folder, "tests"), foreign: []string{filepath.Join(folder, "logs")}}
	link := filepath.Join(folder, "link")
	for target, want := range map[string]linkVerdict{
		"/proc/self/cwd":                               linkLeads,
		"/proc/4242/fd/7":                              linkLeads,
		"/proc/4242/root/tests/expected":               linkLeads,
		"/dev/stdin":                                   linkLeads,
		"/proc/self/root/proc/self/cwd/x":              linkLeads,
		"/proc/self/../self/environ":                   linkLeads,
		"/proc/thread-self/fd/./3":                     linkLeads,
		"../../../../../../../proc/1/cwd/x":            linkLeads,
		"tests/to-come":                                linkLeads,
		"missing/../tests/to-come":                     linkLeads,
		"logs/x":                                       linkLeads,
		strings.Repeat("here/", 100) + "tests/to-come": linkLeads,
		"/dev/stdout":                                  linkHarmless,
		"/proc/self/fd/2":                              linkHarmless,
		"/proc/self/root/etc/hostname":                 linkHarmless,
		"/proc/self":                                   linkHarmless,
		"/proc/cpuinfo":                                linkHarmless,
		"/proc/self/mounts":                            linkHarmless,
		"/var/self/cwd":                                linkHarmless,
		"tests-of-another":                             linkHarmless,
		"tests/../x":                                   linkHarmless,
		"link":                                         linkHarmless,
		"round":                                        linkUnknown,
	} {
		must(t, os.Symlink(target, link))
		if got := cutter.judge(link); got != want {
			t.Errorf("%s: %v", target, got)
		}
		must(t, os.Remove(link))
	}
}

func TestTheLinksOfADeviceFolderStay(t *testing.T) {
	root := t.TempDir()
	for _, name := range []string{"tests", "rootfs/dev", "app"} {
		must(t, os.MkdirAll(filepath.Join(root, name), 0o755))
	}
	for target, name := range map[string]string{"/proc/self/fd": "fd", "/proc/self/fd/0": "stdin", "/proc/self/fd/2": "stderr"} {
		must(t, os.Symlink(target, filepath.Join(root, "rootfs/dev", name)))
	}
	must(t, os.Symlink("/proc/self/fd/3", filepath.Join(root, "rootfs/dev/stdout")))
	must(t, os.Symlink("/proc/self/fd/0", filepath.Join(root, "app/stdin")))
	got, err := testFiles().cutLinks(cutLinksParams{Into: filepath.Join(root, "tests"), Root: root, MaxEntries: 100, MaxSeconds: 9})
	must(t, err)
	slices.Sort(got.Names)
	if want := []string{filepath.Join(root, "app/stdin"), filepath.Join(root, "rootfs/dev/stdout")}; got.Truncated || !slices.Equal(got.Names, want) {
		t.Fatalf("cut %+v; want %v", got, want)
	}
}

func TestAFolderThatCanBeEnteredAndNotListedIsTold(t *testing.T) {
	root := t.TempDir()
	for _, folder := range []string{root, filepath.Dir(root)} {
		must(t, os.Chmod(folder, 0o755))
	}
	for name, mode := range map[string]os.FileMode{"tests": 0o755, "open": 0o711, "closed": 0o700} {
		must(t, os.Mkdir(filepath.Join(root, name), mode))
	}
	since := time.Now().Add(time.Hour).UnixNano() // nothing is new
	asNobody(t, func() {
		cut := func() bool {
			got, err := testFiles().cutLinks(cutLinksParams{
				Into: filepath.Join(root, "tests"), Root: root, Since: since, MaxEntries: 100, MaxSeconds: 9,
			})
			must(t, err)
			return got.Truncated
		}
		changed := func() bool {
			got, err := testFiles().changed(changedParams{Paths: []string{filepath.Join(root, "open")}, Since: since, MaxEntries: 100})
			must(t, err)
			return got.Truncated
		}
		if !cut() || !changed() {
			t.Error("a folder of mode 0711 is not told")
		}
		must(t, asRoot(func() error { return os.Chmod(filepath.Join(root, "open"), 0o700) }))
		if cut() || changed() {
			t.Error("a folder that nobody may enter is told")
		}
	})
}

// asNobody runs a function with the rights of another user, where the tests have root's.
func asNobody(t *testing.T, do func()) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root becomes another")
	}
	must(t, syscall.Seteuid(65534))
	defer func() { must(t, syscall.Seteuid(0)) }()
	do()
}

func asRoot(do func() error) error {
	if err := syscall.Seteuid(0); err != nil {
		return err
	}
	err := do()
	return errors.Join(err, syscall.Seteuid(65534))
}
