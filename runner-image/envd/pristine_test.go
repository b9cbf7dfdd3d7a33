package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"
)

const (
	deep      = "/usr/lib/deep/er/"
	manyFiles = 300
	fewer     = 60 // more than what is left to be looked at in a tree that nobody changed
)

// overlayCase is what happens in a container whose root is an overlay, and what is told of it.
type overlayCase struct {
	options    string
	usedBefore bool                                          // the upper layer was there, with content, long before the first process
	entrypoint func(t *testing.T) (agent func(t *testing.T)) // acts before the agent's time, and hands over what it has open
	agent      func(t *testing.T)
	changed    []string // names that count
	cut        []string // links that are cut
}

var overlayCases = map[string]overlayCase{
	"nothing": {},
	"content": {
		agent:   func(t *testing.T) { write(t, deep+"file") },
		changed: []string{deep + "file"},
	},
	"mode": {
		agent:   func(t *testing.T) { must(t, os.Chmod(deep+"file", 0o700)) },
		changed: []string{deep + "file"},
	},
	"owner": {
		agent:   func(t *testing.T) { must(t, os.Lchown(deep+"file", 4242, 4242)) },
		changed: []string{deep + "file"},
	},
	"mode, of which alone a copy is made": {
		options: "metacopy=on,redirect_dir=on",
		agent:   func(t *testing.T) { must(t, os.Chmod(deep+"file", 0o700)) },
		changed: []string{deep + "file"},
	},
	"attribute": {
		agent:   func(t *testing.T) { must(t, syscall.Setxattr(deep+"file", "trusted.own", []byte("x"), 0)) },
		changed: []string{deep + "file"},
	},
	"new": {
		agent:   func(t *testing.T) { write(t, deep+"new") },
		changed: []string{deep + "new"},
	},
	"removed": {
		agent:   func(t *testing.T) { must(t, os.Remove(deep+"file")) },
		changed: []string{deep},
	},
	"renamed": {
		agent:   func(t *testing.T) { must(t, os.Rename(deep+"file", deep+"other")) },
		changed: []string{deep + "other"},
	},
	"folder in the place of one": {
		agent: func(t *testing.T) {
			must(t, os.RemoveAll(deep))
			must(t, os.Mkdir(deep, 0o755))
			write(t, deep+"file")
		},
		changed: []string{deep + "file"},
	},
	"folder that cannot be moved": {
		options: "redirect_dir=off",
		agent: func(t *testing.T) {
			if err := os.Rename("/opt/moved", "/usr/lib/moved"); !errors.Is(err, syscall.EXDEV) {
				t.Fatalf("a folder of the image was moved: %v", err)
			}
		},
	},
	"moved folder": {
		options: "redirect_dir=on",
		agent:   func(t *testing.T) { must(t, os.Rename("/opt/moved", "/usr/lib/moved")) },
		changed: []string{"/usr/lib/moved/"},
	},
	"below a moved folder": {
		options: "redirect_dir=on",
		agent: func(t *testing.T) {
			must(t, os.Rename("/opt/moved", "/usr/lib/moved"))
			write(t, "/usr/lib/moved/sub/file")
		},
		changed: []string{"/usr/lib/moved/sub/file"},
	},
	"where a link leads": {
		agent:   func(t *testing.T) { write(t, "/opt/real") },
		changed: []string{"/usr/bin/linked"},
	},
	"file of two names": {
		agent: func(t *testing.T) { write(t, "/opt/second") },
	},
	"file of two names with an index": {
		options: "index=on",
		agent:   func(t *testing.T) { write(t, "/opt/second") },
		changed: []string{deep + "first"},
	},
	"file under a further name": {
		agent: func(t *testing.T) {
			must(t, os.Link(deep+"file", "/opt/further"))
			write(t, "/opt/further")
		},
		changed: []string{deep + "file"},
	},
	"file with its further name in here": {
		agent: func(t *testing.T) {
			write(t, "/opt/own")
			must(t, os.Link("/opt/own", deep+"own"))
		},
		changed: []string{deep + "own"},
	},
	"file that had no name": {
		agent: func(t *testing.T) {
			const oTmpfile, atFollow, here = 0o20000000 | syscall.O_DIRECTORY, 0x400, -100
			fd, err := syscall.Open(deep, oTmpfile|syscall.O_WRONLY, 0o755)
			if errors.Is(err, syscall.EOPNOTSUPP) {
				t.Skip("this kernel makes no such files on overlays")
			}
			must(t, err)
			from, _ := syscall.BytePtrFromString(fmt.Sprintf("/proc/self/fd/%d", fd))
			to, _ := syscall.BytePtrFromString(deep + "named")
			_, _, errno := syscall.Syscall6(syscall.SYS_LINKAT, ^uintptr(99), uintptr(unsafe.Pointer(from)),
				^uintptr(99), uintptr(unsafe.Pointer(to)), atFollow, 0)
			if errno != 0 {
				t.Fatal(errno)
			}
		},
		changed: []string{deep + "named"},
	},
	"mapped file": {
		agent: func(t *testing.T) {
			file, err := os.OpenFile(deep+"file", os.O_RDWR, 0)
			must(t, err)
			data, err := syscall.Mmap(int(file.Fd()), 0, 3, syscall.PROT_WRITE, syscall.MAP_SHARED)
			must(t, err)
			must(t, file.Close())
			copy(data, "new")
			must(t, syscall.Munmap(data))
		},
		changed: []string{deep + "file"},
	},
	"by a folder that was open": {
		entrypoint: func(t *testing.T) func(t *testing.T) {
			folder, err := os.OpenRoot(deep)
			must(t, err)
			return func(t *testing.T) { must(t, folder.WriteFile("file", []byte("new"), 0)) }
		},
		changed: []string{deep + "file"},
	},
	"by a file that was open for reading": {
		entrypoint: func(t *testing.T) func(t *testing.T) {
			file, err := os.Open(deep + "file")
			must(t, err)
			return func(t *testing.T) { must(t, file.Chmod(0o700)) }
		},
		changed: []string{deep + "file"},
	},
	// The folder's time is before the agent's in both, and stays so.
	"file that the ENTRYPOINT had copied": {
		entrypoint: func(t *testing.T) func(t *testing.T) {
			write(t, deep+"file")
			return func(t *testing.T) { write(t, deep+"file") }
		},
		changed: []string{deep + "file"},
	},
	"file that was made before the first process": {
		usedBefore: true,
		agent:      func(t *testing.T) { write(t, "/usr/used/file") },
		changed:    []string{"/usr/used/file"},
	},
	"in mounts": {
		agent: func(t *testing.T) {
			write(t, "/usr/lib/mounts/volume/sub/file")
			must(t, os.Symlink("/tests", "/usr/lib/mounts/volume/link"))
			write(t, "/usr/lib/mounts/on/file")
		},
		changed: []string{"/usr/lib/mounts/on/file", "/usr/lib/mounts/volume/link", "/usr/lib/mounts/volume/sub/file"},
		cut:     []string{"/usr/lib/mounts/volume/link"},
	},
	"link": {
		agent:   func(t *testing.T) { must(t, os.Symlink("/tests/expected", deep+"link")) },
		changed: []string{deep + "link"},
		cut:     []string{deep + "link"},
	},
	"link in a moved folder": {
		options: "redirect_dir=on",
		agent: func(t *testing.T) {
			must(t, os.Rename("/opt/moved", "/opt/elsewhere"))
			must(t, os.Symlink("/tests/expected", "/opt/elsewhere/sub/link"))
		},
		cut: []string{"/opt/elsewhere/sub/link"},
	},
}

func write(t *testing.T, name string) {
	t.Helper()
	must(t, os.WriteFile(name, []byte("new"), 0o755))
}

// makeImage makes what the cases happen in.
func makeImage(t *testing.T, root string) {
	t.Helper()
	for _, name := range []string{
		"proc", "sys", "tests", "usr/bin", deep, "usr/lib/mounts/volume", "usr/lib/mounts/on", "opt/moved/sub",
	} {
		must(t, os.MkdirAll(filepath.Join(root, name), 0o755))
	}
	names := []string{"tests/expected", deep + "file", deep + "first", "usr/lib/mounts/on/file", "opt/moved/sub/file", "opt/real"}
	for i := range manyFiles {
		names = append(names, deep+strconv.Itoa(i))
	}
	for _, name := range names {
		must(t, os.WriteFile(filepath.Join(root, name), []byte("old"), 0o755))
	}
	must(t, os.Link(filepath.Join(root, deep, "first"), filepath.Join(root, "opt/second")))
	must(t, os.Symlink("../../opt/real", filepath.Join(root, "usr/bin/linked")))
}

// makeTestFolders makes the image, an upper layer with content, and what is mounted.
func makeTestFolders(t *testing.T, dir string) {
	t.Helper()
	at := func(name string) string { return filepath.Join(dir, name) }
	makeImage(t, at("image"))
	time.Sleep(20 * time.Millisecond) // a tick: the upper layer is younger
	for _, name := range []string{"used/work", "used/upper/usr/used", "volume/sub", "root"} {
		must(t, os.MkdirAll(at(name), 0o755))
	}
	for _, name := range []string{"used/upper/usr/used/file", "volume/sub/file", "file"} {
		must(t, os.WriteFile(at(name), []byte("old"), 0o755))
	}
}

// TestChangesOnAnOverlay runs each case as the first process of a PID namespace, in a mount namespace that ends with it.
func TestChangesOnAnOverlay(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root mounts")
	}
	dir := t.TempDir()
	makeTestFolders(t, dir)
	time.Sleep(startMargin + 100*time.Millisecond) // until the first process of a case is surely later
	for name := range overlayCases {
		t.Run(name, func(t *testing.T) {
			cmd := exec.Command("/proc/self/exe", "-test.run=^TestInOverlay$", "-test.v")
			cmd.Env = append(os.Environ(), "ENVD_TEST_CASE="+name, "ENVD_TEST_FOLDERS="+dir)
			cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWPID}
			output, err := cmd.CombinedOutput()
			switch {
			case cmd.Process == nil:
				t.Skipf("no namespaces: %v", err)
			case err != nil:
				t.Fatalf("%v\n%s", err, output)
			case strings.Contains(string(output), "--- SKIP"):
				t.Skipf("%s", output)
			}
		})
	}
}

func TestInOverlay(t *testing.T) {
	name := os.Getenv("ENVD_TEST_CASE")
	if name == "" {
		t.Skip("is run by TestChangesOnAnOverlay")
	}
	test := overlayCases[name]
	enterOverlay(t, test)
	firstStart, err := firstProcessStart()
	must(t, err)
	agent := test.agent
	if test.entrypoint != nil {
		agent = test.entrypoint(t)
	}
	time.Sleep(20 * time.Millisecond)
	since := time.Now().Add(-10 * time.Millisecond).UnixNano()
	if agent != nil {
		agent(t)
	}

	knowing, plain := testFiles(), testFiles()
	knowing.firstStart = firstStart
	isPristine := newPristine(since, firstStart) != nil
	if hasIndex := strings.Contains(test.options, "index=on"); isPristine == hasIndex {
		t.Fatalf("folders can be pristine: %v", isPristine)
	}
	given := changedParams{Paths: []string{"/usr"}, Since: since, MaxEntries: 10 * manyFiles}
	got, err := knowing.changed(given)
	must(t, err)
	want, err := plain.changed(given)
	must(t, err)
	if got.Truncated || !reflect.DeepEqual(got, want) {
		t.Errorf("changed = %+v; want %+v as without knowing of pristine folders", got, want)
	}
	// A folder is new itself when it is copied for what it holds.
	names := slices.DeleteFunc(got.Names, func(name string) bool {
		return strings.HasSuffix(name, "/") && !slices.Contains(test.changed, name)
	})
	if len(test.changed) == 0 && got.Count != 0 || !slices.Equal(names, slices.Concat([]string{}, test.changed)) {
		t.Errorf("changed = %+v; want %v", got, test.changed)
	}
	cut := func(files *fileStore, entries int) changedResult {
		got, err := files.cutLinks(cutLinksParams{Into: "/tests", Root: "/", Since: since, MaxEntries: entries, MaxSeconds: 9})
		must(t, err)
		return got
	}
	if got := cut(knowing, 10*manyFiles); got.Truncated || !slices.Equal(got.Names, slices.Concat([]string{}, test.cut)) {
		t.Errorf("cut %+v; want %v", got, test.cut)
	}
	if got := cut(plain, 10*manyFiles); got.Truncated || got.Count != 0 {
		t.Errorf("cut %+v after all was cut", got)
	}
	if name == "nothing" {
		for _, files := range []*fileStore{knowing, plain} {
			given.MaxEntries = fewer
			got, err := files.changed(given)
			must(t, err)
			if links := cut(files, fewer); got.Truncated != (files == plain) || links.Truncated != (files == plain) {
				t.Errorf("with few entries: %+v, %+v", got, links)
			}
		}
	}
}

// enterOverlay makes an overlay over the image the root of this process.
func enterOverlay(t *testing.T, test overlayCase) {
	t.Helper()
	at := func(name string) string { return filepath.Join(os.Getenv("ENVD_TEST_FOLDERS"), name) }
	mount := func(source, name, system string, flags uintptr) {
		must(t, syscall.Mount(source, at(name), system, flags, ""))
	}
	must(t, syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""))
	if !test.usedBefore {
		mount("none", "used", "tmpfs", 0) // an overlay cannot be an upper layer, and tests may run in one
		must(t, os.Mkdir(at("used/upper"), 0o755))
		must(t, os.Mkdir(at("used/work"), 0o755))
	}
	options := "lowerdir=" + at("image") + ",upperdir=" + at("used/upper") + ",workdir=" + at("used/work")
	if test.options != "" {
		options += "," + test.options
	}
	if !strings.Contains(options, "index=") {
		options += ",index=off" // is the preset of most kernels, and then named nowhere
	}
	if err := syscall.Mount("overlay", at("root"), "overlay", 0, options); err != nil {
		t.Skipf("no overlay with %s: %v", test.options, err)
	}
	mount("proc", "root/proc", "proc", 0)
	mount("/sys", "root/sys", "", syscall.MS_BIND|syscall.MS_REC)
	mount(at("volume"), "root/usr/lib/mounts/volume", "", syscall.MS_BIND)
	mount(at("file"), "root/usr/lib/mounts/on/file", "", syscall.MS_BIND)
	must(t, syscall.Chroot(at("root")))
	must(t, os.Chdir("/"))
	if _, err := birthTime("/"); err != nil {
		t.Skip(err)
	}
	text, err := os.ReadFile("/proc/self/mountinfo")
	must(t, err)
	if test.options == "index=on" && !strings.Contains(string(text), test.options) {
		t.Skip("the image's file system cannot be indexed")
	}
}

func TestOnlyAnOverlayWithoutAnIndexIsPlain(t *testing.T) {
	const (
		overlay = "100 90 0:50 / / rw,relatime master:3 - overlay overlay rw,lowerdir=/l:/m,upperdir=/u,workdir=/w,index=off\n"
		proc    = "101 100 0:51 / /proc rw - proc proc rw\n"
	)
	for text, want := range map[string]bool{
		overlay + proc:    true,
		proc + overlay:    true,
		proc:              false,
		overlay + overlay: false,
		strings.ReplaceAll(overlay, "index=off", "index=on"):            false,
		strings.ReplaceAll(overlay, "index=off", "metacopy=on,index=x"): false,
		strings.ReplaceAll(overlay, " overlay ", " fuse.overlay "):      false,
		strings.ReplaceAll(overlay, " / / ", " / /merged "):             false,
		strings.ReplaceAll(overlay, " / / ", " /part / "):               false,
	} {
		mounts, err := parseMounts(text)
		must(t, err)
		if got := isPlainOverlay(mounts); got != want {
			t.Errorf("%q: %v", text, got)
		}
	}
}

func TestMountsAreParsed(t *testing.T) {
	got, err := parseMounts("36 35 98:0 /a /b rw,noatime - ext4 /dev/root rw,errors=continue\n" +
		`37 35 0:9 / /with\040space\134040\011 rw shared:1 master:2 - tmpfs  rw` + "\n")
	must(t, err)
	want := []mount{{"/a", "/b", "ext4", []string{"rw", "errors=continue"}}, {"/", "/with space\\040\t", "tmpfs", []string{"rw"}}}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("parsed %q; want %q", got, want)
	}
	for _, line := range []string{
		"\n",
		"36 35 98:0 / /b rw ext4 none rw\n",
		"36 35 / /b - ext4 none rw\n",
		"36 35 98:0 / b rw - ext4 none rw\n",
		"36 35 98:0 / /b rw - ext4 rw\n",
	} {
		if got, err := parseMounts(line); err == nil {
			t.Errorf("%q: parsed %v", line, got)
		}
	}
}

func TestAProcessStartIsReadBehindAnyName(t *testing.T) {
	const rest = " S 0 1 1 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 4711 0 0"
	for text, want := range map[string]int64{
		"1 (sh)" + rest:                                   47_110_000_000,
		"1 (a b) R 0 1 2) (c)" + rest:                     47_110_000_000,
		"1 sh" + rest:                                     0,
		"1 (sh) S 0 1 1":                                  0,
		strings.Replace(rest, "4711", "x", 1):             0,
		"1 (sh)" + strings.Replace(rest, "4711", "-1", 1): 0,
		"1 (sh)" + strings.Replace(rest, "4711", "18446744073709551615", 1): 0,
	} {
		if got, err := parseStart(text); got != want || (err == nil) != (want != 0) {
			t.Errorf("%q: %d, %v; want %d", text, got, err, want)
		}
	}
}

func TestTheFirstProcessStartedBeforeThisOne(t *testing.T) {
	start, err := firstProcessStart()
	must(t, err)
	if ago := time.Since(time.Unix(0, start)); ago < startMargin {
		t.Fatalf("the first process started %s ago", ago)
	}
}

func TestAKernelFileIsOnTheKernelsFileSystem(t *testing.T) {
	name := filepath.Join(t.TempDir(), "stat")
	must(t, os.WriteFile(name, []byte("1 (sh) S"), 0o644))
	if text, err := readKernelFile(name, procMagic); err == nil {
		t.Fatalf("read %q of another", text)
	}
}
