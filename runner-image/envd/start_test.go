package main

import (
	"os"
	"testing"
	"time"
)

func TestOptionsSuitATrialPodAndSurviveTheDaemonsCommandLine(t *testing.T) {
	got, err := parseOptions(nil)
	want := options{ctl: "/seatrial/ctl", patience: 10 * time.Minute, termTime: 55 * time.Second}
	if err != nil || got != want {
		t.Fatalf("%+v, %v; want %+v", got, err, want)
	}
	want = options{ctl: "/x", patience: time.Second, termTime: time.Minute}
	if got, err := parseOptions(want.args()); err != nil || got != want {
		t.Fatalf("%+v, %v; want %+v", got, err, want)
	}
}

func TestUnknownArgumentsAreRefused(t *testing.T) {
	for _, args := range [][]string{{"--listen"}, {"serve"}, {"--patience=soon"}, {"--ctl=relative"}, {"--ctl"}} {
		if got, err := parseOptions(args); err == nil {
			t.Errorf("%q: %+v; want an error", args, got)
		}
	}
}

func TestTheLockHasOneHolder(t *testing.T) {
	dir := t.TempDir()
	first, err := os.Open(dir)
	must(t, err)
	second, err := os.Open(dir)
	must(t, err)
	defer second.Close()
	if got := []bool{takeLock(first), takeLock(second)}; got[0] != true || got[1] != false {
		t.Fatalf("%v; want the first only", got)
	}
	first.Close()
	if !takeLock(second) {
		t.Fatal("the lock outlived its holder")
	}
}

func TestAWritableSocketFolderIsRefused(t *testing.T) {
	dir := t.TempDir()
	if err := checkReadOnly(dir); err == nil {
		t.Fatal("a writable folder was accepted")
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 0 {
		t.Fatalf("the probe left %v, %v", entries, err)
	}
	if err := checkReadOnly("/proc/self"); err != nil {
		t.Fatalf("a folder where nothing can be made: %v", err)
	}
}
