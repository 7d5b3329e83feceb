// Command benchmarks measures watermill-redisdelay beside asynq, watermill-redisstream and plain
// go-redis, all on one Redis server, and says which of its targets are met. See README.md.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"regexp"
	"runtime"
	"runtime/pprof"
)

// scenarios are all there are, in the order in which they run and are reported.
func scenarios(e *env) []scenario {
	return []scenario{
		machine(e), publishing(e), consuming(e), ordered(e), life(e), memory(e),
		lateness(e), idleLateness(e), idle(e), crowd(e), sameInstant(e), backlog(e), manyTopics(e), large(e), relaying(e),
	}
}

type flags struct {
	run, trials            string
	rounds                 int
	smoke                  bool
	out, readme            string
	cpuProfile, memProfile string
}

func main() {
	var f flags
	flag.StringVar(&f.run, "run", "", "run only scenarios whose name matches this `regexp`")
	flag.StringVar(&f.trials, "trials", "", "run only trials whose system and description, as in \"asynq: 10,000 waiting\", match this `regexp`")
	flag.IntVar(&f.rounds, "rounds", 5, "how often each figure is taken")
	flag.BoolVar(&f.smoke, "smoke", false, "tiny sizes, one round: checks that all scenarios work, measures nothing")
	flag.StringVar(&f.out, "out", "", "write the results to `FILE`.md and FILE.json")
	flag.StringVar(&f.readme, "readme", "", "write the summary between the markers of this `file`")
	flag.StringVar(&f.cpuProfile, "cpuprofile", "", "write a CPU profile of this process to `file`")
	flag.StringVar(&f.memProfile, "memprofile", "", "write a profile of this process's allocations to `file`")
	flag.Parse()
	if err := run(f); err != nil {
		fmt.Fprintln(os.Stderr, "benchmarks:", err)
		os.Exit(1)
	}
}

func run(f flags) (err error) {
	choose, err := regexp.Compile(f.run)
	if err != nil {
		return fmt.Errorf("-run: %w", err)
	}
	trials, err := regexp.Compile(f.trials)
	if err != nil {
		return fmt.Errorf("-trials: %w", err)
	}
	server, err := startServer()
	if err != nil {
		return err
	}
	defer server.Stop()
	stopProfiles, err := startProfiles(f)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stopProfiles()) }()

	e := &env{server: server, smoke: f.smoke, rounds: max(f.rounds, 1), trials: trials}
	if f.smoke {
		e.rounds = 1
	}
	report, err := newReport(e)
	if err != nil {
		return err
	}
	for _, s := range scenarios(e) {
		if !choose.MatchString(s.name) {
			continue
		}
		found, err := s.run(e)
		if err != nil {
			return fmt.Errorf("scenario %s: %w", s.name, err)
		}
		report.add(s, found)
	}
	if len(report.parts) == 0 {
		return fmt.Errorf("-run: no scenario matches %q", f.run)
	}
	report.print(os.Stdout)
	return report.write(f.out, f.readme)
}

// startProfiles starts the profiles that were asked for; what it returns ends and writes them.
func startProfiles(f flags) (stop func() error, err error) {
	var cpu *os.File
	if f.cpuProfile != "" {
		if cpu, err = os.Create(f.cpuProfile); err != nil {
			return nil, err
		}
		if err := pprof.StartCPUProfile(cpu); err != nil {
			return nil, err
		}
	}
	return func() error {
		if cpu != nil {
			pprof.StopCPUProfile()
			if err := cpu.Close(); err != nil {
				return err
			}
		}
		if f.memProfile == "" {
			return nil
		}
		file, err := os.Create(f.memProfile)
		if err != nil {
			return err
		}
		runtime.GC()
		return errors.Join(pprof.Lookup("allocs").WriteTo(file, 0), file.Close())
	}, nil
}
