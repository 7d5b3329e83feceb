package redistest

import (
	"context"
	_ "embed"
	"encoding/binary"
	"os"
	"testing"
	"time"
)

//go:embed testdata/clock.c
var clockSource []byte

// StartWithClock is Start for a server whose wall clock the test can set with
// SetClock. It needs Linux and a C compiler (as -race does).
func StartWithClock(t testing.TB, args ...string) *Instance {
	t.Helper()
	return (&Instance{t: t, args: args, withClock: true}).start(freePort)
}

// SetClock lets a running server of StartWithClock see the time of this machine plus
// offset, also after a restart, and returns when it does: Valkey 9 looks at
// the clock every millisecond, and counts on by itself in between.
func (in *Instance) SetClock(offset time.Duration) {
	in.t.Helper()
	shift := binary.NativeEndian.AppendUint64(nil, uint64(offset))
	file, err := os.OpenFile(in.path("clock"), os.O_WRONLY, 0) // must exist
	if err == nil {
		_, err = file.WriteAt(shift, 0)
		_ = file.Close()
	}
	if err != nil {
		in.t.Fatal(err)
	}
	client := in.Client(in.t)
	defer client.Close()
	in.await("its clock is set", func() bool {
		now, err := client.Time(context.Background()).Result()
		return err == nil && now.Sub(time.Now().Add(offset)).Abs() < time.Second/2
	})
}

// fakeClock prepares what StartWithClock adds to the server's environment.
func (in *Instance) fakeClock() {
	in.t.Helper()
	if err := os.WriteFile(in.path("clock"), make([]byte, 8), 0o600); err != nil {
		in.t.Fatal(err)
	}
	in.env = append(in.env, in.preload("clock", clockSource), "REDISTEST_CLOCK="+in.path("clock"))
}
