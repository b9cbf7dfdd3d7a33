package main

import (
	"encoding/binary"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
)

func TestOnlyNamesOfUnknownKindAreAskedFor(t *testing.T) {
	dirent := func(name string, kind byte) []byte {
		data := append(make([]byte, 18), kind)
		data = append(data, name...)
		data = append(data, make([]byte, 8-len(data)%8)...)
		binary.NativeEndian.PutUint16(data[16:], uint16(len(data)))
		return data
	}
	data := slices.Concat(
		dirent(".", syscall.DT_DIR), dirent("..", syscall.DT_DIR), dirent("file", syscall.DT_REG), dirent("link", syscall.DT_LNK),
		dirent("unknown", syscall.DT_UNKNOWN), dirent("gone", syscall.DT_UNKNOWN), dirent("folder", syscall.DT_DIR), []byte("rest"),
	)
	var asked []string
	got := typedNames(data, func(name string) (fs.FileInfo, error) {
		asked = append(asked, name)
		if name == "gone" {
			return nil, fs.ErrNotExist
		}
		return os.Lstat("/")
	})
	want := []typedName{{"file", 0}, {"link", fs.ModeSymlink}, {"unknown", fs.ModeDir}, {"folder", fs.ModeDir}}
	if !slices.Equal(got, want) || !slices.Equal(asked, []string{"unknown", "gone"}) {
		t.Fatalf("%v, asked for %v", got, asked)
	}
}

func TestAFolderOfManyNamesIsReadWhole(t *testing.T) {
	dir := t.TempDir()
	const count = 2 * dirBytes / 24 // each takes 24 bytes of a list at least
	for i := range count {
		must(t, os.Symlink("x", filepath.Join(dir, fmt.Sprint(i))))
	}
	must(t, os.WriteFile(filepath.Join(dir, "file"), nil, 0o644))
	folder, err := os.OpenRoot(dir)
	must(t, err)
	defer folder.Close()
	for limit, want := range map[int]int{count: count, count - 1: count - 1, 1: 1} {
		names, more, err := listFolder(folder, limit, false)
		if err != nil || len(names) != want || more != (want < count) || slices.Contains(names, "file") || !slices.IsSorted(names) {
			t.Errorf("limit %d: %d names, more %v, %v", limit, len(names), more, err)
		}
	}
}
