package main

import (
	"archive/tar"
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const (
	maxPathBytes  = 4096
	maxPutEntries = 200_000
	maxMTime      = 1 << 33 // what fits a plain tar header; later times are cut
	permissions   = 0o7777
)

// fileStore reads and writes the container's files as the user that envd runs as.
//
// Links: those in the parents of a path are the image's layout and are resolved. The last part of a path, and everything below it, is
// never followed.
type fileStore struct {
	users   *users
	environ []string           // of this container
	limits  [16]syscall.Rlimit // at the start

	firstStart int64 // of the container's first process, as of envd's own start; 0 where it is not known
}

type pathParams struct {
	Path string `json:"path"`
}

type mkdirParams struct {
	Path  string  `json:"path"`
	Mode  uint32  `json:"mode"`
	Owner *string `json:"owner"`
}

type emptyParams struct {
	Path string  `json:"path"`
	Mode *uint32 `json:"mode"`
}

type putParams struct {
	Path       string  `json:"path"`
	EmptyFirst bool    `json:"empty_first"`
	Owner      *string `json:"owner"`
	DirMode    uint32  `json:"dir_mode"`
}

type writeParams struct {
	Path  string  `json:"path"`
	Size  int64   `json:"size"`
	Mode  uint32  `json:"mode"`
	Owner *string `json:"owner"`
}

type getParams struct {
	Path         string `json:"path"`
	MaxBytes     int64  `json:"max_bytes"`
	MaxEntries   int    `json:"max_entries"`
	MaxFileBytes int64  `json:"max_file_bytes"`
}

type usageParams struct {
	Path       string `json:"path"`
	MaxEntries int    `json:"max_entries"`
}

type statResult struct {
	Kind  string `json:"kind"` // file, dir, link, other
	Size  int64  `json:"size"`
	Mode  uint32 `json:"mode"`
	UID   uint32 `json:"uid"`
	GID   uint32 `json:"gid"`
	MTime int64  `json:"mtime"`
}

type putResult struct {
	Entries int   `json:"entries"`
	Bytes   int64 `json:"bytes"`
}

type getResult struct {
	Entries           int   `json:"entries"`
	Bytes             int64 `json:"bytes"`
	SkippedSpecial    int   `json:"skipped_special"`
	SkippedLarge      int   `json:"skipped_large"`
	SkippedUnreadable int   `json:"skipped_unreadable"`
	Changed           int   `json:"changed"`
	Truncated         bool  `json:"truncated"`
}

type usageResult struct {
	Bytes     int64 `json:"bytes"`
	Entries   int   `json:"entries"`
	Truncated bool  `json:"truncated"`
}

// owner is who a written file will belong to; nil leaves it with envd's own user.
type owner struct{ uid, gid int }

func (s *fileStore) ownerOf(spec *string) (*owner, error) {
	if spec == nil || *spec == "" {
		if s.users.effectiveUID == 0 && s.users.gid != 0 {
			return &owner{}, nil // a setuid envd creates files with the container's own group
		}
		return nil, nil
	}
	who, err := s.users.resolve(*spec)
	if err != nil {
		return nil, err
	}
	return &owner{uid: int(who.uid), gid: int(who.gid)}, nil
}

// cleanPath accepts absolute paths only.
func cleanPath(name string) (string, error) {
	switch {
	case !strings.HasPrefix(name, "/"):
		return "", failf(kindBadRequest, "path %q is not absolute", name)
	case len(name) > maxPathBytes || strings.IndexByte(name, 0) >= 0:
		return "", failf(kindBadRequest, "path of %d bytes is too long or holds a NUL byte", len(name))
	}
	return path.Clean(name), nil
}

func (s *fileStore) stat(p pathParams) (statResult, error) {
	name, err := cleanPath(p.Path)
	if err != nil {
		return statResult{}, err
	}
	info, err := os.Lstat(name)
	if errors.Is(err, syscall.ENOTDIR) {
		err = failf(kindMissing, "%w", err)
	}
	if err != nil {
		return statResult{}, err
	}
	result := statResult{Kind: kindOf(info), Size: info.Size(), Mode: tarMode(info), MTime: info.ModTime().Unix()}
	if sys, ok := info.Sys().(*syscall.Stat_t); ok {
		result.UID, result.GID = sys.Uid, sys.Gid
	}
	return result, nil
}

func kindOf(info fs.FileInfo) string {
	switch {
	case info.Mode().IsRegular():
		return "file"
	case info.IsDir():
		return "dir"
	case info.Mode()&fs.ModeSymlink != 0:
		return "link"
	}
	return "other"
}

// tarMode gives the permission bits as the kernel numbers them.
func tarMode(info fs.FileInfo) uint32 {
	if sys, ok := info.Sys().(*syscall.Stat_t); ok {
		return uint32(sys.Mode) & permissions
	}
	return uint32(info.Mode().Perm())
}

// goMode turns the kernel's permission bits into package os's.
func goMode(bits uint32) fs.FileMode {
	mode := fs.FileMode(bits & 0o777)
	if bits&0o1000 != 0 {
		mode |= fs.ModeSticky
	}
	if bits&0o2000 != 0 {
		mode |= fs.ModeSetgid
	}
	if bits&0o4000 != 0 {
		mode |= fs.ModeSetuid
	}
	return mode
}

func (s *fileStore) mkdir(p mkdirParams) (struct{}, error) {
	name, err := cleanPath(p.Path)
	if err != nil {
		return struct{}{}, err
	}
	belongsTo, err := s.ownerOf(p.Owner)
	if err != nil {
		return struct{}{}, err
	}
	if _, err := makeFolders(name, 0o755, nil); err != nil {
		return struct{}{}, err
	}
	folder, err := openFolder(name)
	if err != nil {
		return struct{}{}, err
	}
	defer folder.Close()
	return struct{}{}, dress(folder, ".", p.Mode, belongsTo)
}

// makeFolders makes a folder and its parents, each new one with the mode whatever the umask is. It tells whether the folder is new.
func makeFolders(name string, mode uint32, belongsTo *owner) (bool, error) {
	info, err := os.Lstat(name)
	if err == nil {
		if info.Mode()&fs.ModeSymlink != 0 {
			// As the last part of the path this is refused by openFolder; as a parent it must lead to a folder.
			info, err = os.Stat(name)
		}
		if err == nil && !info.IsDir() {
			err = failf(kindIO, "%s is not a directory", name)
		}
		return false, err
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return false, err
	}
	if _, err := makeFolders(filepath.Dir(name), mode, belongsTo); err != nil {
		return false, err
	}
	if err := os.Mkdir(name, 0o700); err != nil {
		if errors.Is(err, fs.ErrExist) {
			return false, nil
		}
		return false, err
	}
	folder, err := openFolder(name)
	if err != nil {
		return true, err
	}
	defer folder.Close()
	return true, dress(folder, ".", mode, belongsTo)
}

// dress sets mode and owner of what was just made in a folder. The owner first: a change of owner clears the setuid bit.
func dress(folder *os.Root, name string, mode uint32, belongsTo *owner) error {
	if belongsTo != nil {
		if err := folder.Lchown(name, belongsTo.uid, belongsTo.gid); err != nil {
			return err
		}
	}
	return folder.Chmod(name, goMode(mode))
}

// remove removes a file, a link or a tree; not what links point to.
func (s *fileStore) remove(p pathParams) (map[string]bool, error) {
	name, err := cleanPath(p.Path)
	if err != nil {
		return nil, err
	}
	if name == "/" {
		return nil, failf(kindBadRequest, "the root directory is not removed")
	}
	if _, err := os.Lstat(name); err != nil {
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
			return map[string]bool{"removed": false}, nil
		}
		return nil, err
	}
	if err := os.RemoveAll(name); err != nil {
		return nil, err
	}
	return map[string]bool{"removed": true}, nil
}

// empty makes an empty directory of whatever is at the path. A directory is kept, because a mount point cannot be replaced.
func (s *fileStore) empty(p emptyParams) (struct{}, error) {
	folder, err := s.emptied(p.Path, 0o755, nil)
	if err != nil {
		return struct{}{}, err
	}
	defer folder.Close()
	if p.Mode == nil {
		return struct{}{}, nil
	}
	return struct{}{}, dress(folder, ".", *p.Mode, nil)
}

func (s *fileStore) emptied(name string, mode uint32, belongsTo *owner) (*os.Root, error) {
	name, err := cleanPath(name)
	if err != nil {
		return nil, err
	}
	if name == "/" {
		return nil, failf(kindBadRequest, "the root directory is not emptied")
	}
	if info, err := os.Lstat(name); err == nil && !info.IsDir() {
		if err := os.Remove(name); err != nil {
			return nil, err
		}
	}
	folder, err := s.folder(name, mode, belongsTo)
	if err != nil {
		return nil, err
	}
	if err := emptyFolder(folder); err != nil {
		folder.Close()
		return nil, err
	}
	return folder, nil
}

// folder opens a directory, making it and its parents where they are missing.
func (s *fileStore) folder(name string, mode uint32, belongsTo *owner) (*os.Root, error) {
	if _, err := makeFolders(name, mode, belongsTo); err != nil {
		return nil, err
	}
	return openFolder(name)
}

// put unpacks a tar stream into a directory. Entries stay inside it whatever the stream says and whatever the task's processes do meanwhile:
// every name is resolved below the open directory.
func (s *fileStore) put(in io.Reader, p putParams) (putResult, error) {
	name, err := cleanPath(p.Path)
	if err != nil {
		return putResult{}, err
	}
	belongsTo, err := s.ownerOf(p.Owner)
	if err != nil {
		return putResult{}, err
	}
	var folder *os.Root
	if p.EmptyFirst {
		folder, err = s.emptied(name, p.DirMode, belongsTo)
	} else {
		folder, err = s.folder(name, p.DirMode, belongsTo)
	}
	if err != nil {
		return putResult{}, err
	}
	defer folder.Close()

	result := putResult{}
	type madeFolder struct {
		name string
		mode uint32
	}
	var folders []madeFolder // their modes come last: a read-only folder could not be filled
	archive := tar.NewReader(bufio.NewReaderSize(in, maxChunkBytes))
	for {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return result, archiveError(err)
		}
		entry := path.Clean(header.Name)
		if !filepath.IsLocal(entry) {
			return result, failf(kindBadArchive, "entry %q leaves the directory", header.Name)
		}
		if result.Entries++; result.Entries > maxPutEntries {
			return result, failf(kindBadArchive, "more than %d entries", maxPutEntries)
		}
		mode := uint32(header.Mode) & permissions
		if header.Typeflag == tar.TypeDir {
			if entry != "." {
				if err := putFolder(folder, entry, belongsTo); err != nil {
					return result, err
				}
				folders = append(folders, madeFolder{entry, mode})
			}
			continue
		}
		if err := makeParents(folder, entry, belongsTo); err != nil {
			return result, err
		}
		switch header.Typeflag {
		case tar.TypeReg:
			n, err := putFile(folder, entry, archive, mode, belongsTo)
			result.Bytes += n
			if err != nil {
				return result, err
			}
			if err := folder.Chtimes(entry, header.ModTime, header.ModTime); err != nil {
				return result, err
			}
		case tar.TypeSymlink:
			if err := putLink(folder, entry, header.Linkname, belongsTo); err != nil {
				return result, err
			}
		default:
			return result, failf(kindBadArchive, "entry %q is neither file, directory nor symbolic link", header.Name)
		}
	}
	for i := len(folders) - 1; i >= 0; i-- {
		if err := dress(folder, folders[i].name, folders[i].mode, belongsTo); err != nil {
			return result, err
		}
	}
	return result, nil
}

func archiveError(err error) error {
	var known *requestError
	if errors.As(err, &known) {
		return err
	}
	return failf(kindBadArchive, "read the archive: %w", err)
}

func makeParents(folder *os.Root, entry string, belongsTo *owner) error {
	parent := path.Dir(entry)
	if parent == "." {
		return nil
	}
	if info, err := folder.Lstat(parent); err == nil && info.IsDir() {
		return nil
	}
	if err := makeParents(folder, parent, belongsTo); err != nil {
		return err
	}
	return putFolder(folder, parent, belongsTo)
}

// putFolder makes one folder whose parent exists, writable for now. A file or link in its place is replaced.
func putFolder(folder *os.Root, entry string, belongsTo *owner) error {
	if err := makeParents(folder, entry, belongsTo); err != nil {
		return err
	}
	if info, err := folder.Lstat(entry); err == nil {
		if info.IsDir() {
			return nil
		}
		if err := folder.Remove(entry); err != nil {
			return err
		}
	}
	if err := folder.Mkdir(entry, 0o700); err != nil {
		return err
	}
	return dress(folder, entry, 0o755, belongsTo)
}

// makeRoom removes a file or link, so that the new one is a new file: a hard link elsewhere keeps its content.
func makeRoom(folder *os.Root, entry string) error {
	info, err := folder.Lstat(entry)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if info.IsDir() {
		return failf(kindIO, "%s is a directory in the environment and a file in the archive", entry)
	}
	return folder.Remove(entry)
}

func putFile(folder *os.Root, entry string, content io.Reader, mode uint32, belongsTo *owner) (int64, error) {
	if err := makeRoom(folder, entry); err != nil {
		return 0, err
	}
	file, err := folder.OpenFile(entry, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return 0, err
	}
	defer file.Close()
	n, err := io.Copy(file, content)
	if err != nil {
		var onDisk *fs.PathError
		if errors.As(err, &onDisk) {
			return n, fmt.Errorf("write %s: %w", entry, err)
		}
		return n, archiveError(err)
	}
	if belongsTo != nil {
		if err := file.Chown(belongsTo.uid, belongsTo.gid); err != nil {
			return n, err
		}
	}
	if err := file.Chmod(goMode(mode)); err != nil {
		return n, err
	}
	return n, file.Close()
}

func putLink(folder *os.Root, entry, target string, belongsTo *owner) error {
	if err := makeRoom(folder, entry); err != nil {
		return err
	}
	if err := folder.Symlink(target, entry); err != nil {
		return err
	}
	if belongsTo == nil {
		return nil
	}
	return folder.Lchown(entry, belongsTo.uid, belongsTo.gid)
}

// write puts one file in place at once: it is written beside its name and renamed, so that a link there is replaced and never followed.
func (s *fileStore) write(in io.Reader, p writeParams) (struct{}, error) {
	name, err := cleanPath(p.Path)
	if err != nil {
		return struct{}{}, err
	}
	if p.Size < 0 {
		return struct{}{}, failf(kindBadRequest, "size %d", p.Size)
	}
	belongsTo, err := s.ownerOf(p.Owner)
	if err != nil {
		return struct{}{}, err
	}
	parent := filepath.Dir(name)
	if _, err := makeFolders(parent, 0o755, nil); err != nil {
		return struct{}{}, err
	}
	folder, err := os.OpenRoot(parent)
	if err != nil {
		return struct{}{}, err
	}
	defer folder.Close()
	temporary := ".seatrial-" + strconv.FormatUint(rand.Uint64(), 36)
	n, err := putFile(folder, temporary, io.LimitReader(in, p.Size), p.Mode, belongsTo)
	if err == nil && n != p.Size {
		err = failf(kindBadArchive, "%d bytes came for %s, %d were announced", n, name, p.Size)
	}
	if err == nil {
		err = folder.Rename(temporary, filepath.Base(name))
	}
	if err != nil {
		return struct{}{}, errors.Join(err, ignoreMissing(folder.Remove(temporary)))
	}
	return struct{}{}, nil
}

func ignoreMissing(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// usage counts the disk space below a path, on its own file system only.
func (s *fileStore) usage(p usageParams) (usageResult, error) {
	name, err := cleanPath(p.Path)
	if err != nil {
		return usageResult{}, err
	}
	if p.MaxEntries < 1 {
		return usageResult{}, failf(kindBadRequest, "usage without a limit")
	}
	start, err := os.Lstat(name)
	if err != nil {
		return usageResult{}, err
	}
	result := usageResult{}
	device := deviceOf(start)
	type inode struct{ device, number uint64 }
	seen := map[inode]bool{}
	count := func(info fs.FileInfo) {
		sys, ok := info.Sys().(*syscall.Stat_t)
		if !ok || uint64(sys.Dev) != device {
			return
		}
		if sys.Nlink > 1 && !info.IsDir() {
			key := inode{uint64(sys.Dev), sys.Ino}
			if seen[key] {
				return
			}
			seen[key] = true
		}
		result.Entries++
		result.Bytes += sys.Blocks * 512
	}
	count(start)
	if !start.IsDir() {
		return result, nil
	}
	limits := &walkLimits{maxEntries: p.MaxEntries}
	if err := walk(name, limits, func(n node) error { count(n.info); return nil }); err != nil {
		return result, err
	}
	result.Truncated = limits.truncated
	return result, nil
}

func deviceOf(info fs.FileInfo) uint64 {
	if sys, ok := info.Sys().(*syscall.Stat_t); ok {
		return uint64(sys.Dev)
	}
	return 0
}

// get writes a file, link or directory tree as a tar stream. Special files are left out and counted, like files above the limits. A file
// that changes while it is read arrives with the size it had at first, cut or padded with zeros.
func (s *fileStore) get(out io.Writer, p getParams) (getResult, error) {
	name, err := cleanPath(p.Path)
	if err != nil {
		return getResult{}, err
	}
	if p.MaxBytes < 0 || p.MaxEntries < 1 || p.MaxFileBytes < 0 {
		return getResult{}, failf(kindBadRequest, "get without limits")
	}
	info, err := os.Lstat(name)
	if errors.Is(err, syscall.ENOTDIR) {
		err = failf(kindMissing, "%w", err)
	}
	if err != nil {
		return getResult{}, err
	}
	buffered := bufio.NewWriterSize(out, maxChunkBytes)
	g := &getter{archive: tar.NewWriter(buffered), limits: p}
	if info.IsDir() {
		err = g.tree(name, info)
	} else {
		err = g.single(name, info)
	}
	if err == nil {
		err = g.archive.Close()
	}
	if err == nil {
		err = buffered.Flush()
	}
	return g.result, err
}

type getter struct {
	archive *tar.Writer
	limits  getParams
	result  getResult
}

func (g *getter) tree(name string, info fs.FileInfo) error {
	if err := g.header(".", info, ""); err != nil {
		return err
	}
	limits := &walkLimits{maxEntries: g.limits.MaxEntries - 1}
	err := walk(name, limits, g.add)
	g.result.Truncated = limits.truncated
	g.result.SkippedUnreadable += limits.unreadable
	return err
}

func (g *getter) single(name string, info fs.FileInfo) error {
	parent, err := os.OpenRoot(filepath.Dir(name))
	if err != nil {
		return err
	}
	defer parent.Close()
	base := filepath.Base(name)
	return g.add(node{rel: base, parent: parent, name: base, info: info})
}

func (g *getter) add(n node) error {
	switch kindOf(n.info) {
	case "dir":
		return g.header(n.rel, n.info, "")
	case "link":
		target, err := n.parent.Readlink(n.name)
		if err != nil {
			g.result.SkippedUnreadable++
			return nil
		}
		return g.header(n.rel, n.info, target)
	case "file":
		return g.file(n)
	}
	g.result.SkippedSpecial++
	return nil
}

func (g *getter) file(n node) error {
	file, err := n.open()
	if err != nil {
		g.result.SkippedUnreadable++
		return nil
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		g.result.SkippedUnreadable++
		return nil
	}
	size := info.Size()
	if (g.limits.MaxFileBytes > 0 && size > g.limits.MaxFileBytes) || size > g.limits.MaxBytes-g.result.Bytes {
		g.result.SkippedLarge++
		return nil
	}
	if err := g.header(n.rel, info, ""); err != nil {
		return err
	}
	content := &readCounter{file: file}
	if _, err := io.CopyN(g.archive, content, size); err != nil && content.err == nil {
		return err // of the archive
	}
	g.result.Bytes += size
	missing := size - content.n
	if _, err := io.CopyN(g.archive, zeros{}, missing); err != nil {
		return err
	}
	after, err := file.Stat()
	if missing > 0 || err != nil || after.Size() != size || !after.ModTime().Equal(info.ModTime()) {
		g.result.Changed++
	}
	return nil
}

func (g *getter) header(rel string, info fs.FileInfo, linkTarget string) error {
	header := &tar.Header{
		Format:  tar.FormatPAX,
		Name:    rel,
		Mode:    int64(tarMode(info)),
		ModTime: time.Unix(min(max(info.ModTime().Unix(), 0), maxMTime-1), 0),
	}
	switch {
	case linkTarget != "":
		header.Typeflag, header.Linkname = tar.TypeSymlink, linkTarget
	case info.IsDir():
		header.Typeflag = tar.TypeDir
		header.Name += "/"
	default:
		header.Typeflag, header.Size = tar.TypeReg, info.Size()
	}
	g.result.Entries++
	return g.archive.WriteHeader(header)
}

// readCounter remembers how much was read and how reading ended, to tell a short file from a broken connection.
type readCounter struct {
	file *os.File
	n    int64
	err  error
}

func (r *readCounter) Read(p []byte) (int, error) {
	n, err := r.file.Read(p)
	r.n += int64(n)
	r.err = err
	return n, err
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}
