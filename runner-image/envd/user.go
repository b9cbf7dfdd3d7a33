package main

import (
	"bufio"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

const (
	maxAccountsBytes = 1 << 20 // of /etc/passwd and /etc/group that are read; the image writes them
	maxAccountLine   = 64 << 10
	maxGroups        = 256
)

// account is one line of /etc/passwd.
type account struct {
	name string
	uid  uint32
	gid  uint32
	home string
}

// identity is who a command runs as.
type identity struct {
	inherit bool // as envd itself runs: nothing is switched
	uid     uint32
	gid     uint32
	groups  []uint32
	name    string // "" without a passwd entry
	home    string // "" to leave HOME alone
}

// users knows the accounts of the image and what this process may switch to.
type users struct {
	passwdPath, groupPath string
	uid, gid              uint32 // the container's own user: the real ids, also when the binary is setuid root
	effectiveUID          uint32
	groups                []uint32
	canSwitch             bool
}

func currentUsers() *users {
	u := &users{
		passwdPath:   "/etc/passwd",
		groupPath:    "/etc/group",
		uid:          uint32(os.Getuid()),
		gid:          uint32(os.Getgid()),
		effectiveUID: uint32(os.Geteuid()),
	}
	if ids, err := os.Getgroups(); err == nil {
		for _, id := range ids {
			u.groups = append(u.groups, uint32(id))
		}
	}
	u.canSwitch = u.effectiveUID == 0 && hasSetIDCapabilities()
	return u
}

// resolve finds the identity for "" (the container's user), a name, a uid, "user:group" or "uid:gid". A uid needs no entry.
func (u *users) resolve(spec string) (identity, error) {
	if spec == "" {
		return u.own(), nil
	}
	userPart, groupPart, hasGroup := strings.Cut(spec, ":")
	target := identity{}
	found, ok := u.account(userPart)
	switch {
	case ok:
		target = identity{uid: found.uid, gid: found.gid, name: found.name, home: found.home}
	default:
		uid, err := parseID(userPart)
		if err != nil {
			return identity{}, failf(kindNoUser, "user %q is not in %s", userPart, u.passwdPath)
		}
		target = identity{uid: uid, home: "/"}
	}
	if hasGroup {
		gid, err := u.groupID(groupPart)
		if err != nil {
			return identity{}, err
		}
		target.gid = gid
	} else if target.name != "" {
		target.groups = u.groupsOf(target.name)
	}
	if target.uid == u.uid && target.gid == u.gid && u.effectiveUID == u.uid {
		return u.own(), nil
	}
	if !u.canSwitch {
		return identity{}, failf(kindCannotUser,
			"cannot run as %q: envd runs as uid %d without the right to switch users; give the task an image whose USER is root", spec, u.effectiveUID)
	}
	if target.home == "" {
		target.home = "/"
	}
	return target, nil
}

// own is the container's user. A setuid envd has to step down to it, an ordinary one inherits it.
func (u *users) own() identity {
	return identity{inherit: u.effectiveUID == u.uid, uid: u.uid, gid: u.gid, groups: u.groups}
}

func (u *users) credential(who identity) *syscall.Credential {
	if who.inherit {
		return nil
	}
	return &syscall.Credential{Uid: who.uid, Gid: who.gid, Groups: who.groups}
}

func (u *users) account(nameOrUID string) (account, bool) {
	var byUID *account
	uid, err := parseID(nameOrUID)
	isNumber := err == nil
	var byName *account
	scanFields(u.passwdPath, func(fields []string) bool {
		entry, ok := parsePasswd(fields)
		if !ok {
			return true
		}
		if entry.name == nameOrUID {
			byName = &entry
			return false
		}
		if isNumber && byUID == nil && entry.uid == uid {
			byUID = &entry
		}
		return true
	})
	switch {
	case byName != nil:
		return *byName, true
	case byUID != nil:
		return *byUID, true
	}
	return account{}, false
}

func (u *users) groupID(nameOrGID string) (uint32, error) {
	gid, numberErr := parseID(nameOrGID)
	found := false
	scanFields(u.groupPath, func(fields []string) bool {
		if len(fields) >= 3 && fields[0] == nameOrGID {
			if id, err := parseID(fields[2]); err == nil {
				gid, found = id, true
				return false
			}
		}
		return true
	})
	if !found && numberErr != nil {
		return 0, failf(kindNoUser, "group %q is not in %s", nameOrGID, u.groupPath)
	}
	return gid, nil
}

func (u *users) groupsOf(name string) []uint32 {
	var groups []uint32
	scanFields(u.groupPath, func(fields []string) bool {
		if len(fields) < 4 || !slices.Contains(strings.Split(fields[3], ","), name) {
			return true
		}
		if gid, err := parseID(fields[2]); err == nil && !slices.Contains(groups, gid) {
			groups = append(groups, gid)
		}
		return len(groups) < maxGroups
	})
	return groups
}

func (u *users) hasPasswd() bool {
	info, err := os.Stat(u.passwdPath)
	return err == nil && info.Mode().IsRegular()
}

func parsePasswd(fields []string) (account, bool) {
	if len(fields) < 4 || fields[0] == "" {
		return account{}, false
	}
	uid, uidErr := parseID(fields[2])
	gid, gidErr := parseID(fields[3])
	if uidErr != nil || gidErr != nil {
		return account{}, false
	}
	entry := account{name: fields[0], uid: uid, gid: gid}
	if len(fields) >= 6 && strings.HasPrefix(fields[5], "/") {
		entry.home = fields[5]
	}
	return entry, true
}

// parseID reads a uid or gid. 4294967295 means "leave as it is" to the kernel and is refused.
func parseID(text string) (uint32, error) {
	id, err := strconv.ParseUint(text, 10, 32)
	if err == nil && uint32(id) == ^uint32(0) {
		err = strconv.ErrRange
	}
	return uint32(id), err
}

// scanFields gives each line of a passwd-like file, split at colons, until visit returns false. What cannot be read has no lines.
func scanFields(path string, visit func(fields []string) bool) {
	// O_NONBLOCK: a fifo at this path must not hold envd up.
	file, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return
	}
	defer file.Close()
	if info, err := file.Stat(); err != nil || !info.Mode().IsRegular() {
		return
	}
	lines := bufio.NewScanner(io.LimitReader(file, maxAccountsBytes))
	lines.Buffer(make([]byte, 0, 4096), maxAccountLine)
	for lines.Scan() {
		line := strings.TrimSpace(lines.Text())
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		if strings.IndexByte(line, 0) >= 0 {
			continue
		}
		if !visit(strings.Split(line, ":")) {
			return
		}
	}
}
