package redistest

import (
	_ "embed"
	"os"
	"os/exec"
	"runtime"
	"testing"
)

//go:embed testdata/collate.c
var collateSource []byte

// StartWithLocale starts a server whose locale sorts texts in reverse order of their bytes. It
// needs Linux and a C compiler, like StartWithClock.
func StartWithLocale(t testing.TB, args ...string) *Instance {
	t.Helper()
	prepare := func(in *Instance) { in.env = append(in.env, in.preload("locale", collateSource)) }
	return (&Instance{t: t, args: args, prepare: prepare}).start(FreePort)
}

// preload compiles a library, and returns the variable that makes the server load it first.
func (in *Instance) preload(name string, source []byte) (variable string) {
	in.t.Helper()
	cc, err := exec.LookPath("cc")
	if err != nil || runtime.GOOS != "linux" {
		missing(in.t, "a server with a "+name+" of its own needs Linux and a C compiler")
	}
	file, lib := in.path(name+".c"), in.path(name+".so")
	if err := os.WriteFile(file, source, 0o600); err != nil {
		in.t.Fatal(err)
	}
	if out, err := exec.Command(cc, "-O1", "-Wall", "-Wextra", "-fPIC", "-shared", "-o", lib, file).CombinedOutput(); err != nil {
		in.t.Fatalf("redistest: %v: %s", err, out)
	}
	return "LD_PRELOAD=" + lib
}
