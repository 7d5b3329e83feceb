package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
)

// system is what the program gets from its surroundings.
type system struct {
	environment    []string // NAME=value
	stdout, stderr io.Writer
}

// A command is what the first argument names.
type command struct {
	name, summary string

	// prepare declares the command's settings. What it returns runs when they are read.
	prepare func(s *settings) func(ctx context.Context, logger *slog.Logger, sys system) error
}

func commands() []command {
	return []command{
		{"relay", "publishes due messages to another message queue", prepareRelay},
		{"version", "says which version this is", prepareVersion},
		{"help", "says what there is; help COMMAND: which settings a command has", nil},
	}
}

const (
	exitFailed  = 1
	exitRefused = 2 // what it was told to do cannot be done
)

// errRefused is wrapped by errors about settings, and what else the program is told.
var errRefused = errors.New("refused")

// errLogged is for what the log says already.
var errLogged = errors.New("see the log")

// refuse is an error about what the program is told.
func refuse(format string, args ...any) error {
	return &refusal{fmt.Errorf(format, args...)}
}

type refusal struct{ error }

func (r *refusal) Unwrap() []error { return []error{errRefused, r.error} }

// run runs a command and returns the exit status.
func run(ctx context.Context, args []string, sys system) int {
	if len(args) == 0 {
		printHelp(sys.stderr)
		return exitRefused
	}
	name, args := args[0], args[1:]
	if wantsHelp(name) {
		return help(args, sys)
	}
	c, err := find(name)
	if err != nil {
		return complain(sys, "redisdelay", err)
	}
	err = c.run(ctx, args, sys)
	if errors.Is(err, flag.ErrHelp) {
		return help([]string{name}, sys)
	}
	return complain(sys, "redisdelay "+name, err)
}

func wantsHelp(arg string) bool {
	switch arg {
	case "help", "-h", "-help", "--help":
		return true
	}
	return false
}

// run reads the settings, and runs the command.
func (c command) run(ctx context.Context, args []string, sys system) error {
	s := newSettings(sys.environment)
	start := c.prepare(s)
	if err := s.read(args); err != nil {
		return err
	}
	logger, err := s.log.logger(sys.stderr)
	if err != nil {
		return err
	}
	slog.SetDefault(logger)
	for _, name := range s.unknown() {
		logger.Warn("An environment variable stands for no setting of this command, and is not used", "variable", name)
	}
	if err := start(ctx, logger, sys); errors.Is(err, errRefused) {
		return err
	} else if err != nil {
		logger.Error("Failed", "error", err)
		return errLogged
	}
	return nil
}

func find(name string) (command, error) {
	var names []string
	for _, c := range commands() {
		if c.name == name {
			return c, nil
		}
		names = append(names, c.name)
	}
	return command{}, refuse("there is no command %q; there are %s", name, strings.Join(names, ", "))
}

// complain says what is wrong, a line for each fault, and returns the exit status.
func complain(sys system, who string, err error) int {
	switch {
	case err == nil:
		return 0
	case errors.Is(err, errLogged):
		return exitFailed
	}
	said := map[string]bool{} // two settings may have the same fault
	for _, line := range strings.Split(err.Error(), "\n") {
		if !said[line] {
			_, _ = fmt.Fprintf(sys.stderr, "%s: %s\n", who, line)
		}
		said[line] = true
	}
	if errors.Is(err, errRefused) {
		return exitRefused
	}
	return exitFailed
}

func help(args []string, sys system) int {
	if len(args) == 0 || wantsHelp(args[0]) {
		printHelp(sys.stdout)
		return 0
	}
	c, err := find(args[0])
	if err != nil {
		return complain(sys, "redisdelay help", err)
	}
	s := newSettings(nil)
	c.prepare(s)
	_, _ = fmt.Fprintf(sys.stdout, "redisdelay %s: %s\n", c.name, c.summary)
	s.print(sys.stdout)
	return 0
}

func printHelp(w io.Writer) {
	_, _ = fmt.Fprintf(w, "redisdelay COMMAND [--setting value ...]\n\n")
	for _, c := range commands() {
		_, _ = fmt.Fprintf(w, "  %-8s %s\n", c.name, c.summary)
	}
}

// readSecret returns what a file holds, without the line's end.
func readSecret(file string) (string, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return "", err
	}
	secret := strings.TrimRight(string(text), "\r\n")
	if secret == "" {
		return "", fmt.Errorf("%s is empty", file)
	}
	return secret, nil
}
