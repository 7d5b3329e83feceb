// Command runtests runs go test in modules, several at a time, and prints a line for each package
// as it ends. The whole output of what fails is shown. The commands of make test call it.
//
//	runtests [-lanes N] [-slowest N] 'DIRECTORY ARGUMENT...'...
//
// Each argument is a run: the directory of a module, and what go test gets there. -lanes is the
// number of runs at a time, 1 by default. -slowest prints the slowest tests at the end, none by
// default. It exits with 1 if anything failed.
//
//   - main.go reads the arguments and runs go test.
//   - report.go reads the events of go test -json, and prints what a person needs of them.
package main

import (
	"bufio"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"time"
)

func main() {
	lanes := flag.Int("lanes", 1, "runs at a time")
	slowest := flag.Int("slowest", 0, "number of the slowest tests to print")
	flag.Parse()
	if flag.NArg() == 0 || *lanes < 1 {
		fmt.Fprintln(os.Stderr, "usage: runtests [-lanes N] [-slowest N] 'DIRECTORY ARGUMENT...'...")
		os.Exit(2)
	}
	r := newReport(os.Stdout, time.Now)
	stop := r.beat(30 * time.Second)
	waiting := make(chan []string, flag.NArg())
	for _, text := range flag.Args() {
		waiting <- strings.Fields(text)
	}
	close(waiting)
	var wg sync.WaitGroup
	for range *lanes {
		wg.Go(func() {
			for run := range waiting {
				if err := compile(r, run); err == nil { // else go test reports it, with the package's name
					r.compiled(run[0])
				}
				if err := test(r, run); err != nil {
					r.failed(fmt.Sprintf("go test in %s: %v", run[0], err))
				}
			}
		})
	}
	wg.Wait()
	stop()
	if !r.end(*slowest) {
		os.Exit(1)
	}
}

// compile compiles what the tests of a run import, and tells r the packages one by one.
func compile(r *report, run []string) error {
	flags, packages := split(run[1:])
	list := append([]string{"-C", run[0], "list", "-test", "-deps", "-f", `{{if not (or .ForTest (eq .Name "main"))}}{{.ImportPath}}{{end}}`}, flags...)
	found, err := exec.Command("go", append(list, packages...)...).Output()
	if err != nil {
		return err
	}
	build := append([]string{"-C", run[0], "build", "-v"}, flags...)
	cmd := exec.Command("go", append(build, strings.Fields(string(found))...)...)
	pipe, err := cmd.StderrPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	for lines := bufio.NewScanner(pipe); lines.Scan(); {
		r.compiles()
	}
	return cmd.Wait()
}

// split returns those arguments of go test that go build has too, and the packages.
func split(args []string) (flags, packages []string) {
	for _, arg := range args {
		switch {
		case arg == "-race", strings.HasPrefix(arg, "-tags="), strings.HasPrefix(arg, "-gcflags="):
			flags = append(flags, arg)
		case !strings.HasPrefix(arg, "-"):
			packages = append(packages, arg)
		}
	}
	return flags, packages
}

// test runs go test, without go vet, which make lint runs. It returns an error only if r was not
// told what failed.
func test(r *report, run []string) error {
	cmd := exec.Command("go", append([]string{"-C", run[0], "test", "-json", "-count=1", "-vet=off"}, run[1:]...)...)
	cmd.Stderr = os.Stderr
	pipe, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	failures, readErr := r.read(pipe)
	_, _ = io.Copy(io.Discard, pipe)
	err = cmd.Wait()
	if failures > 0 && readErr == nil {
		err = nil
	}
	return errors.Join(readErr, err)
}
