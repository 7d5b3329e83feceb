// Command peers compares this project with systems that people would use instead, each on a server
// of its own that this program starts. README.md says how figures are taken.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"regexp"
	"syscall"
	"time"

	"github.com/redisdelay/watermill-redisdelay/internal/test/machine"
)

// sizes say how much work there is.
type sizes struct {
	messages           int
	minDelay, maxDelay time.Duration
	lease              time.Duration // after which the message of a dead worker comes back, where it can be set
	idle               time.Duration // how long an idle system is watched
	settle             time.Duration // for what is on its way when a system is looked at
	patience           time.Duration // messages that are missing count as lost when none came for so long
}

var (
	full  = sizes{100_000, time.Second, 10 * time.Second, 30 * time.Second, 30 * time.Second, time.Second, 2 * time.Minute}
	smoke = sizes{1_000, 100 * time.Millisecond, time.Second, 2 * time.Second, time.Second, 200 * time.Millisecond, 3 * time.Second}
)

func main() {
	var f flags
	flag.StringVar(&f.peers, "peers", "", "run only systems whose program matches this `regexp`")
	flag.BoolVar(&f.smoke, "smoke", false, "1,000 messages and short delays: checks that all works, measures nothing")
	flag.IntVar(&f.messages, "messages", 0, "publish `n` messages instead")
	flag.StringVar(&f.out, "out", "", "write the results to `FILE`.md and FILE.json")
	flag.StringVar(&f.choose, "choose", "", "write the table between the markers of this `file`")
	flag.Parse()
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGHUP, syscall.SIGINT, syscall.SIGTERM)
	err := run(ctx, f)
	cancel()
	if err != nil {
		fmt.Fprintln(os.Stderr, "peers:", err)
		os.Exit(1)
	}
}

type flags struct {
	peers    string
	smoke    bool
	messages int
	out      string
	choose   string
}

func run(ctx context.Context, f flags) (err error) {
	choose, err := regexp.Compile(f.peers)
	if err != nil {
		return fmt.Errorf("-peers: %w", err)
	}
	dir, err := os.MkdirTemp("", "peers")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if err := os.Chmod(dir, 0o755); err != nil { // PostgreSQL runs as another user
		return err
	}

	b := &bench{dir: dir, sizes: full, tries: machine.Tries}
	if f.smoke {
		b.sizes, b.tries = smoke, 1
	}
	if f.messages > 0 {
		b.sizes.messages = f.messages
	}
	r := newReport(b.sizes)
	var failed []error
	for _, p := range peers {
		if !choose.MatchString(p.program) {
			continue
		}
		row := b.measure(ctx, p)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if row.Failed != "" {
			failed = append(failed, fmt.Errorf("%s: %s", p.name, row.Failed))
		}
		r.Systems = append(r.Systems, row)
	}
	if len(r.Systems) == 0 {
		return fmt.Errorf("-peers: no system matches %q", f.peers)
	}
	fmt.Print(r.markdown())
	return errors.Join(append(failed, r.write(f.out, f.choose))...)
}
