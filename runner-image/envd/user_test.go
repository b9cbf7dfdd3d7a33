package main

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"
)

// imageUsers is an envd that runs as root in an image with these files.
func imageUsers(t *testing.T, passwd, group string) *users {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{"passwd": passwd, "group": group} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return &users{passwdPath: filepath.Join(dir, "passwd"), groupPath: filepath.Join(dir, "group"), canSwitch: true}
}

const (
	testPasswd = "root:x:0:0:root:/root:/bin/sh\n# comment\n\nbroken\nbad:x:minus:0\nann:x:1000:1001:Ann,,,:/home/ann:/bin/sh\n" +
		"1234:x:77:78::/numeric:\nshort:x:5:6\nodd:x:8:9::relative:\n"
	testGroup = "root:x:0:\nann:x:1001:\nwheel:x:10:root,ann\ndocker:x:20:ann\ndouble:x:20:ann\nbroken:x:nan:ann\nx\n"
)

func TestUsersAreResolvedAsTheImageSays(t *testing.T) {
	ann := identity{uid: 1000, gid: 1001, groups: []uint32{10, 20}, name: "ann", home: "/home/ann"}
	cases := map[string]identity{
		"":             {inherit: true},
		"root":         {inherit: true},
		"0":            {inherit: true},
		"0:0":          {inherit: true},
		"ann":          ann,
		"1000":         ann,
		"ann:docker":   {uid: 1000, gid: 20, name: "ann", home: "/home/ann"},
		"ann:4000":     {uid: 1000, gid: 4000, name: "ann", home: "/home/ann"},
		"1234":         {uid: 77, gid: 78, name: "1234", home: "/numeric"}, // a name comes before a number
		"4242":         {uid: 4242, home: "/"},
		"4242:4343":    {uid: 4242, gid: 4343, home: "/"},
		"4242:docker":  {uid: 4242, gid: 20, home: "/"},
		"short":        {uid: 5, gid: 6, name: "short", home: "/"},
		"odd":          {uid: 8, gid: 9, name: "odd", home: "/"},
		"0:wheel":      {uid: 0, gid: 10, name: "root", home: "/root"},
		"ann:00000020": {uid: 1000, gid: 20, name: "ann", home: "/home/ann"},
	}
	for spec, want := range cases {
		t.Run(spec, func(t *testing.T) {
			got, err := imageUsers(t, testPasswd, testGroup).resolve(spec)
			if err != nil || !reflect.DeepEqual(got, want) {
				t.Fatalf("%+v, %v; want %+v", got, err, want)
			}
		})
	}
}

func TestUnknownUsersAndGroupsAreRefused(t *testing.T) {
	for _, spec := range []string{"bob", "bad", "ann:nogroup", "-1", "4294967295", "4294967296", ":", "ann:", "ann:4294967295"} {
		_, err := imageUsers(t, testPasswd, testGroup).resolve(spec)
		var known *requestError
		if !errors.As(err, &known) || known.kind != kindNoUser {
			t.Errorf("%q: %v; want kind %s", spec, err, kindNoUser)
		}
	}
}

func TestWithoutRootOnlyTheOwnUserIsServed(t *testing.T) {
	u := imageUsers(t, testPasswd, testGroup)
	u.uid, u.gid, u.effectiveUID, u.canSwitch = 1000, 1001, 1000, false
	for _, spec := range []string{"", "ann", "1000", "ann:ann"} {
		if got, err := u.resolve(spec); err != nil || !got.inherit {
			t.Errorf("%q: %+v, %v; want the own user", spec, got, err)
		}
	}
	for _, spec := range []string{"root", "0", "ann:docker", "5"} {
		_, err := u.resolve(spec)
		var known *requestError
		if !errors.As(err, &known) || known.kind != kindCannotUser {
			t.Errorf("%q: %v; want kind %s", spec, err, kindCannotUser)
		}
	}
}

func TestASetuidEnvdStepsDownToTheContainersUser(t *testing.T) {
	u := imageUsers(t, testPasswd, testGroup)
	u.uid, u.gid, u.effectiveUID, u.groups = 1000, 1001, 0, []uint32{10}
	got, err := u.resolve("")
	if want := (identity{uid: 1000, gid: 1001, groups: []uint32{10}}); err != nil || !reflect.DeepEqual(got, want) {
		t.Fatalf("%+v, %v; want %+v", got, err, want)
	}
	if want := (&syscall.Credential{Uid: 1000, Gid: 1001, Groups: []uint32{10}}); !reflect.DeepEqual(u.credential(got), want) {
		t.Fatalf("credential %+v; want %+v", u.credential(got), want)
	}
	got, err = u.resolve("root")
	if want := (identity{uid: 0, gid: 0, groups: []uint32{10}, name: "root", home: "/root"}); err != nil || !reflect.DeepEqual(got, want) {
		t.Fatalf("root: %+v, %v; want %+v", got, err, want)
	}
}

func TestHostileAccountFilesAreReadUpToTheirLimit(t *testing.T) {
	u := imageUsers(t, strings.Repeat("x:x:1:1\n", maxAccountsBytes/8)+"late:x:9:9\n", "")
	if _, found := u.account("late"); found {
		t.Error("an account behind the limit was found")
	}
	long := imageUsers(t, strings.Repeat("y", 2*maxAccountLine)+"\nafter:x:9:9\n", "")
	if _, found := long.account("after"); found {
		t.Error("an account behind an endless line was found")
	}
	fifo := filepath.Join(t.TempDir(), "passwd")
	if err := syscall.Mkfifo(fifo, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, found := (&users{passwdPath: fifo}).account("root"); found {
		t.Error("an account was found in a fifo")
	}
}
