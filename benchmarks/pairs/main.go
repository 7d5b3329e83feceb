// Command pairs measures this tree beside an earlier commit, in turns, and prints a table of how
// they compare. make pairs runs it, and docs/performance.md says how to read the table.
//
// tree.go builds the two trees. jobs.go has what is measured, and run.go runs it on a server of its
// own. compare.go makes ratios of it, and report.go the table. life is a program that is compiled
// into both trees.
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

type flags struct {
	base   string
	run    *regexp.Regexp
	rounds int
	limit  time.Duration
	smoke  bool
}

func main() {
	var f flags
	var run string
	flag.StringVar(&f.base, "base", "", "the `commit` to compare with")
	flag.StringVar(&run, "run", "", "measure only what matches this `regexp`, such as \"life|Publish\"")
	flag.IntVar(&f.rounds, "rounds", 5, "pairs of each measurement")
	flag.DurationVar(&f.limit, "limit", 10*time.Minute, "begin no round that would end later than this")
	flag.BoolVar(&f.smoke, "smoke", false, "one round of tiny sizes: checks that all works, measures nothing")
	flag.Parse()
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGHUP, syscall.SIGINT, syscall.SIGTERM)
	var err error
	if f.run, err = regexp.Compile(run); err != nil {
		err = fmt.Errorf("-run: %w", err)
	} else {
		err = measure(ctx, f)
	}
	cancel()
	if err != nil {
		fmt.Fprintln(os.Stderr, "pairs:", err)
		os.Exit(1)
	}
}

func measure(ctx context.Context, f flags) (err error) {
	if f.base == "" {
		return errors.New("name the commit to compare with: make pairs BASE=<commit>")
	}
	chosen := choose(jobs, f.run)
	if len(chosen) == 0 {
		return fmt.Errorf("-run: nothing matches %q", f.run)
	}
	dir, err := os.MkdirTemp("", "pairs")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	base, remove, err := baseTree(ctx, f.base, dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, remove()) }()
	here, err := thisTree(ctx, dir)
	if err != nil {
		return err
	}
	for _, t := range []*tree{base, here} {
		fmt.Fprintf(os.Stderr, "building %s\n", t.name)
		if err := t.build(ctx, here.dir); err != nil {
			return err
		}
	}

	tries := machine.Tries
	if f.smoke {
		f.rounds, tries = 1, 1
	}
	r := &report{base: base.name, here: here.name, began: time.Now()}
	r.loadBefore, _ = machine.Load()
	p := pace{rounds: f.rounds, limit: f.limit, began: r.began}
	for p.next(time.Now()) {
		for i, job := range chosen {
			fmt.Fprintf(os.Stderr, "round %d of %d, %d of %d: %s\n", p.done+1, f.rounds, i+1, len(chosen), job.name)
			var sides [2]side
			for _, which := range order(p.done) {
				t := []*tree{base, here}[which]
				if p.over(time.Now()) {
					tries = 1
				}
				if sides[which], err = measureSide(ctx, job, t, f.smoke, tries); err != nil {
					return fmt.Errorf("%s of %s: %w", job.name, t.name, err)
				}
			}
			r.results.add(sides[oldSide], sides[newSide])
		}
		p.done++
	}
	r.rounds, r.took = p.done, time.Since(r.began)
	r.loadAfter, _ = machine.Load()
	fmt.Print(r.markdown())
	return nil
}

// measureSide measures one side of a pair, again if the machine moved meanwhile.
func measureSide(ctx context.Context, j job, t *tree, smoke bool, tries int) (s side, err error) {
	s.state, err = machine.Steadily(ctx, tries, machine.Measure, func() (err error) {
		s.rows, err = runJob(ctx, j, t, smoke)
		return err
	})
	return s, err
}
