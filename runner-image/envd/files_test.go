package main

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"
)

func testFiles() *fileStore { return &fileStore{users: currentUsers(), limits: resourceLimits()} }

func kindOfError(err error) string {
	if err == nil {
		return ""
	}
	return toWire(err).Kind
}

func makeTar(t *testing.T, entries ...tar.Header) io.Reader {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, entry := range entries {
		content := entry.PAXRecords["content"]
		entry.PAXRecords = nil
		entry.Size = int64(len(content))
		if err := w.WriteHeader(&entry); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, content); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return &out
}

func tarFile(name string, mode int64, content string) tar.Header {
	return tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: mode, PAXRecords: map[string]string{"content": content}}
}

// tree lists a folder as "mode name" with content or link target.
func tree(t *testing.T, root string) []string {
	t.Helper()
	var lines []string
	err := filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(root, name)
		info, err := d.Info()
		if err != nil || rel == "." {
			return err
		}
		line := fmt.Sprintf("%04o %s", tarMode(info), rel)
		switch {
		case info.Mode().IsRegular():
			content, err := os.ReadFile(name)
			if err != nil {
				return err
			}
			line += "=" + string(content)
		case info.Mode()&fs.ModeSymlink != 0:
			target, err := os.Readlink(name)
			if err != nil {
				return err
			}
			line = "link " + rel + "->" + target
		}
		lines = append(lines, line)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return lines
}

func TestPutKeepsModesAndMergesIntoTheFolder(t *testing.T) {
	target := filepath.Join(t.TempDir(), "a", "b")
	archive := makeTar(t,
		tar.Header{Name: "locked/", Typeflag: tar.TypeDir, Mode: 0o500},
		tarFile("locked/run.sh", 0o755, "x"),
		tarFile("./deep/er/file", 0o600, "y"),
		tar.Header{Name: "link", Typeflag: tar.TypeSymlink, Linkname: "../../elsewhere"},
	)
	if _, err := testFiles().put(archive, putParams{Path: target, DirMode: 0o750}); err != nil {
		t.Fatal(err)
	}
	if _, err := testFiles().put(makeTar(t, tarFile("link", 0o644, "z")), putParams{Path: target, DirMode: 0o755}); err != nil {
		t.Fatal(err)
	}
	want := []string{"0755 deep", "0755 deep/er", "0600 deep/er/file=y", "0644 link=z", "0500 locked", "0755 locked/run.sh=x"}
	if got := tree(t, target); !reflect.DeepEqual(got, want) {
		t.Fatalf("%q; want %q", got, want)
	}
	if info, err := os.Stat(target); err != nil || tarMode(info) != 0o750 {
		t.Fatalf("target %v, %v; want mode 0750", info, err)
	}
}

func TestPutEmptyFirstReplacesALinkAndClearsAFolder(t *testing.T) {
	dir := t.TempDir()
	outside := filepath.Join(dir, "outside")
	target := filepath.Join(dir, "tests")
	must(t, os.Mkdir(outside, 0o755))
	must(t, os.WriteFile(filepath.Join(outside, "keep"), []byte("k"), 0o644))
	must(t, os.Symlink(outside, target))

	if _, err := testFiles().put(makeTar(t), putParams{Path: target, DirMode: 0o755}); kindOfError(err) != kindLink {
		t.Fatalf("put through a link: %v; want kind %s", err, kindLink)
	}
	for range 2 { // the second time over a real folder with a link in it
		archive := makeTar(t, tarFile("test.sh", 0o755, "t"))
		if _, err := testFiles().put(archive, putParams{Path: target, DirMode: 0o755, EmptyFirst: true}); err != nil {
			t.Fatal(err)
		}
		if got, want := tree(t, target), []string{"0755 test.sh=t"}; !reflect.DeepEqual(got, want) {
			t.Fatalf("%q; want %q", got, want)
		}
		must(t, os.Symlink(outside, filepath.Join(target, "planted")))
	}
	if got, want := tree(t, outside), []string{"0644 keep=k"}; !reflect.DeepEqual(got, want) {
		t.Fatalf("outside: %q; want %q", got, want)
	}
}

func TestPutNeverLeavesTheFolder(t *testing.T) {
	dir := t.TempDir()
	target := filepath.Join(dir, "target")
	must(t, os.Mkdir(target, 0o755))
	must(t, os.Symlink(dir, filepath.Join(target, "up")))
	must(t, os.WriteFile(filepath.Join(dir, "victim"), []byte("v"), 0o644))
	must(t, os.Link(filepath.Join(dir, "victim"), filepath.Join(target, "hard")))

	for name, archive := range map[string]io.Reader{
		"dots":      makeTar(t, tarFile("../escaped", 0o644, "x")),
		"absolute":  makeTar(t, tarFile("/escaped", 0o644, "x")),
		"device":    makeTar(t, tar.Header{Name: "null", Typeflag: tar.TypeChar}),
		"hard link": makeTar(t, tar.Header{Name: "h", Typeflag: tar.TypeLink, Linkname: "hard"}),
		"rubbish":   strings.NewReader(strings.Repeat("rubbish ", 200)),
		"cut off":   io.LimitReader(makeTar(t, tarFile("f", 0o644, strings.Repeat("x", 2000))), 1000),
	} {
		if _, err := testFiles().put(archive, putParams{Path: target, DirMode: 0o755}); kindOfError(err) != kindBadArchive {
			t.Errorf("%s: %v; want kind %s", name, err, kindBadArchive)
		}
	}
	// A link that a process of the task planted is replaced by the archive's folder, a hard link by a new file.
	archive := makeTar(t, tarFile("up/file", 0o644, "x"), tarFile("hard", 0o644, "new"))
	if _, err := testFiles().put(archive, putParams{Path: target, DirMode: 0o755}); err != nil {
		t.Fatal(err)
	}
	if content, err := os.ReadFile(filepath.Join(dir, "victim")); err != nil || string(content) != "v" {
		t.Errorf("victim = %q, %v; want v", content, err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 2 {
		t.Errorf("beside the target: %v, %v; want target and victim only", entries, err)
	}
}

func TestWriteReplacesALinkAtOnce(t *testing.T) {
	dir := t.TempDir()
	must(t, os.WriteFile(filepath.Join(dir, "victim"), []byte("v"), 0o644))
	must(t, os.Symlink("victim", filepath.Join(dir, "reward.txt")))
	if _, err := testFiles().write(strings.NewReader("1.0"), writeParams{Path: dir + "/reward.txt", Size: 3, Mode: 0o640}); err != nil {
		t.Fatal(err)
	}
	if _, err := testFiles().write(strings.NewReader("1"), writeParams{Path: dir + "/new/short", Size: 3, Mode: 0o640}); kindOfError(err) != kindBadArchive {
		t.Fatalf("short content: %v", err)
	}
	if got, want := tree(t, dir), []string{"0755 new", "0640 reward.txt=1.0", "0644 victim=v"}; !reflect.DeepEqual(got, want) {
		t.Fatalf("%q; want %q", got, want)
	}
}

func TestRemoveAndEmptyDoNotFollowLinks(t *testing.T) {
	dir := t.TempDir()
	outside := filepath.Join(dir, "outside")
	must(t, os.Mkdir(outside, 0o755))
	must(t, os.WriteFile(filepath.Join(outside, "keep"), nil, 0o644))
	link := filepath.Join(dir, "link")

	must(t, os.Symlink(outside, link))
	got, err := testFiles().remove(pathParams{Path: link})
	if want := map[string]bool{"removed": true}; err != nil || !reflect.DeepEqual(got, want) {
		t.Fatalf("%v, %v; want %v", got, err, want)
	}
	for _, gone := range []string{link, outside + "/keep/below-a-file"} {
		got, err = testFiles().remove(pathParams{Path: gone})
		if want := map[string]bool{"removed": false}; err != nil || !reflect.DeepEqual(got, want) {
			t.Fatalf("%s: %v, %v; want %v", gone, got, err, want)
		}
	}
	must(t, os.Symlink(outside, link))
	mode := uint32(0o777)
	for range 2 {
		if _, err := testFiles().empty(emptyParams{Path: link, Mode: &mode}); err != nil {
			t.Fatal(err)
		}
		if got := tree(t, link); len(got) != 0 {
			t.Fatalf("%q; want nothing", got)
		}
		must(t, os.MkdirAll(filepath.Join(link, "a", "b"), 0o755))
		must(t, os.Symlink(outside, filepath.Join(link, "a", "planted")))
	}
	if _, err := os.Stat(filepath.Join(outside, "keep")); err != nil {
		t.Fatal(err)
	}
	for _, root := range []string{"/", "//", "/tmp/.."} {
		if _, err := testFiles().remove(pathParams{Path: root}); kindOfError(err) != kindBadRequest {
			t.Errorf("remove %s: %v", root, err)
		}
		if _, err := testFiles().empty(emptyParams{Path: root}); kindOfError(err) != kindBadRequest {
			t.Errorf("empty %s: %v", root, err)
		}
	}
}

func TestStatDoesNotFollow(t *testing.T) {
	dir := t.TempDir()
	must(t, os.Symlink("/etc/passwd", filepath.Join(dir, "link")))
	got, err := testFiles().stat(pathParams{Path: dir + "/link"})
	if err != nil || got.Kind != "link" || got.Size != int64(len("/etc/passwd")) {
		t.Fatalf("%+v, %v; want a link", got, err)
	}
	for _, missing := range []string{dir + "/none", "/etc/passwd/below"} {
		if _, err := testFiles().stat(pathParams{Path: missing}); kindOfError(err) != kindMissing {
			t.Errorf("%s: %v; want kind %s", missing, err, kindMissing)
		}
	}
}

// names reads a tar stream as "name=content".
func names(t *testing.T, stream io.Reader) []string {
	t.Helper()
	var lines []string
	for r := tar.NewReader(stream); ; {
		header, err := r.Next()
		if err == io.EOF {
			return lines
		}
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		switch header.Typeflag {
		case tar.TypeReg:
			lines = append(lines, header.Name+"="+string(content))
		case tar.TypeSymlink:
			lines = append(lines, header.Name+"->"+header.Linkname)
		default:
			lines = append(lines, header.Name)
		}
	}
}

func TestGetTakesFilesFoldersAndLinksAndCountsTheRest(t *testing.T) {
	dir := t.TempDir()
	must(t, os.Mkdir(filepath.Join(dir, "sub"), 0o755))
	must(t, os.WriteFile(filepath.Join(dir, "sub", "b"), []byte("bb"), 0o644))
	must(t, os.WriteFile(filepath.Join(dir, "a"), []byte("aa"), 0o644))
	must(t, os.WriteFile(filepath.Join(dir, "large"), bytes.Repeat([]byte("x"), 100), 0o644))
	must(t, os.Symlink("/etc", filepath.Join(dir, "link")))
	must(t, syscall.Mkfifo(filepath.Join(dir, "fifo"), 0o644))

	var out bytes.Buffer
	got, err := testFiles().get(&out, getParams{Path: dir, MaxBytes: 1000, MaxEntries: 100, MaxFileBytes: 99})
	want := getResult{Entries: 5, Bytes: 4, SkippedSpecial: 1, SkippedLarge: 1}
	if err != nil || got != want {
		t.Fatalf("%+v, %v; want %+v", got, err, want)
	}
	if got, want := names(t, &out), []string{"./", "a=aa", "link->/etc", "sub/", "sub/b=bb"}; !reflect.DeepEqual(got, want) {
		t.Fatalf("%q; want %q", got, want)
	}
}

func TestGetStaysWithinItsLimits(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"a", "b", "c", "d"} {
		must(t, os.WriteFile(filepath.Join(dir, name), []byte("12345"), 0o644))
	}
	cases := map[string]struct {
		limits getParams
		result getResult
		names  []string
	}{
		"bytes":    {getParams{MaxBytes: 12, MaxEntries: 100}, getResult{Entries: 3, Bytes: 10, SkippedLarge: 2}, []string{"./", "a=12345", "b=12345"}},
		"entries":  {getParams{MaxBytes: 100, MaxEntries: 1}, getResult{Entries: 1, Truncated: true}, []string{"./"}},
		"no bytes": {getParams{MaxBytes: 0, MaxEntries: 100}, getResult{Entries: 1, SkippedLarge: 4}, []string{"./"}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			c.limits.Path = dir
			got, err := testFiles().get(&out, c.limits)
			if err != nil || got != c.result {
				t.Fatalf("%+v, %v; want %+v", got, err, c.result)
			}
			if got := names(t, &out); !reflect.DeepEqual(got, c.names) {
				t.Fatalf("%q; want %q", got, c.names)
			}
		})
	}
}

func TestGetStopsAtTheDepthLimit(t *testing.T) {
	dir := t.TempDir()
	must(t, os.MkdirAll(filepath.Join(dir, strings.Repeat("d/", maxDepth+5)), 0o755))
	got, err := testFiles().get(io.Discard, getParams{Path: dir, MaxBytes: 1, MaxEntries: 1000})
	if want := (getResult{Entries: maxDepth + 1, Truncated: true}); err != nil || got != want {
		t.Fatalf("%+v, %v; want %+v", got, err, want)
	}
}

// onFirstWrite runs a function when the first bytes arrive: the header of the file is out, its content not yet read to the end.
type onFirstWrite struct {
	do func()
	bytes.Buffer
}

func (w *onFirstWrite) Write(p []byte) (int, error) {
	if w.do != nil {
		w.do()
		w.do = nil
	}
	return w.Buffer.Write(p)
}

func TestAFileThatShrinksWhileReadKeepsItsSizeAndIsCounted(t *testing.T) {
	name := filepath.Join(t.TempDir(), "file")
	size := 4 * maxChunkBytes
	must(t, os.WriteFile(name, bytes.Repeat([]byte("x"), size), 0o644))
	out := &onFirstWrite{do: func() { must(t, os.Truncate(name, 0)) }}
	got, err := testFiles().get(out, getParams{Path: name, MaxBytes: 1 << 30, MaxEntries: 1})
	if want := (getResult{Entries: 1, Bytes: int64(size), Changed: 1}); err != nil || got != want {
		t.Fatalf("%+v, %v; want %+v", got, err, want)
	}
	if lines := names(t, out); len(lines) != 1 || len(lines[0]) != size+len("file=") {
		t.Fatalf("%d entries; want one of the announced size", len(lines))
	}
}

func TestANameThatStandsForAnotherFileByNowIsNotRead(t *testing.T) {
	dir := t.TempDir()
	must(t, os.WriteFile(filepath.Join(dir, "secret"), []byte("s"), 0o600))
	must(t, os.WriteFile(filepath.Join(dir, "file"), []byte("f"), 0o600))
	root, err := os.OpenRoot(dir)
	must(t, err)
	defer root.Close()
	info, err := root.Lstat("file")
	must(t, err)
	must(t, os.Remove(filepath.Join(dir, "file")))
	must(t, os.Symlink("secret", filepath.Join(dir, "file")))
	if _, err := (node{parent: root, name: "file", info: info}).open(); !errors.Is(err, errReplaced) {
		t.Fatalf("open = %v; want %v", err, errReplaced)
	}
}

func TestUsageCountsHardLinksOnce(t *testing.T) {
	dir := t.TempDir()
	must(t, os.WriteFile(filepath.Join(dir, "a"), make([]byte, 64<<10), 0o644))
	one, err := testFiles().usage(usageParams{Path: dir, MaxEntries: 10})
	must(t, err)
	must(t, os.Link(filepath.Join(dir, "a"), filepath.Join(dir, "b")))
	two, err := testFiles().usage(usageParams{Path: dir, MaxEntries: 10})
	if err != nil || two != one || one.Entries != 2 || one.Bytes < 64<<10 {
		t.Fatalf("%+v then %+v, %v; want the same twice", one, two, err)
	}
	cut, err := testFiles().usage(usageParams{Path: dir, MaxEntries: 1})
	if err != nil || !cut.Truncated {
		t.Fatalf("%+v, %v; want truncated", cut, err)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
