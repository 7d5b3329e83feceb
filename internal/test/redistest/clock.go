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

// StartWithClock starts a server whose wall clock the test can set with
// SetClock. It needs Linux and a C compiler, as -race does.
func StartWithClock(t testing.TB, args ...string) *Instance {
	t.Helper()
	return (&Instance{t: t, args: args, prepare: (*Instance).fakeClock}).start(FreePort)
}

// SetClock sets the clock of a running server of StartWithClock to this
// machine's time plus offset, also after a restart. It returns when the server
// uses it, because Valkey 9 reads the clock only once per millisecond.
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

// fakeClock adds the library for SetClock to the server's environment.
func (in *Instance) fakeClock() {
	in.t.Helper()
	if err := os.WriteFile(in.path("clock"), make([]byte, 8), 0o600); err != nil {
		in.t.Fatal(err)
	}
	in.env = append(in.env, in.preload("clock", clockSource), "REDISTEST_CLOCK="+in.path("clock"))
}
