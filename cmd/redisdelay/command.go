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

// system has the environment and the output of the program.
type system struct {
	environment    []string // NAME=value
	stdout, stderr io.Writer
}

// command is a command, which the first argument names.
type command struct {
	name, summary string

	// prepare declares the command's settings, and returns the function to run after they are read.
	prepare func(s *settings) func(ctx context.Context, logger *slog.Logger, sys system) error
}

func commands() []command {
	return []command{
		{"relay", "publishes due messages to another message queue", prepareRelay},
		{"version", "prints the version", prepareVersion},
		{"help", "lists the commands; help COMMAND lists the settings of a command", nil},
	}
}

const (
	exitFailed  = 1
	exitRefused = 2 // the settings are invalid
)

// errRefused is wrapped by errors about settings and arguments.
var errRefused = errors.New("refused")

// errLogged means that the error was logged.
var errLogged = errors.New("see the log")

// refuse returns an error about settings or arguments, which wraps errRefused.
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

// run reads the settings and runs the command.
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
		logger.Warn("An environment variable is not a setting of this command, ignoring it", "variable", name)
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
	return command{}, refuse("there is no command %q; the commands are %s", name, strings.Join(names, ", "))
}

// complain prints the errors, one per line, and returns the exit status.
func complain(sys system, name string, err error) int {
	switch {
	case err == nil:
		return 0
	case errors.Is(err, errLogged):
		return exitFailed
	}
	printed := map[string]bool{} // two settings may have the same fault
	for _, line := range strings.Split(err.Error(), "\n") {
		if !printed[line] {
			_, _ = fmt.Fprintf(sys.stderr, "%s: %s\n", name, line)
		}
		printed[line] = true
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

// readSecret returns the content of a file without the line break at its end.
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
