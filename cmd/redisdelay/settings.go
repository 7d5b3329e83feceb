package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
)

const environmentPrefix = "REDISDELAY_"

// settings are the settings of a command. Each is a flag, and an environment variable of the same
// name: --health is REDISDELAY_HEALTH. A flag overrides the variable, which overrides the default.
// An empty variable is ignored.
//
// Secrets are not flags, because everybody on the machine can see a program's arguments. A secret
// is an environment variable, or the content of a file that a flag or variable names.
type settings struct {
	flags     *flag.FlagSet
	variables map[string]string
	all       []*setting
	log       logSettings
}

// setting is one setting, a flag and a variable.
type setting struct {
	name, usage string
	secret      *secret // the secret whose file this names; nil for other settings
	given       origin
}

// origin is where the value of a setting comes from.
type origin int

const (
	byDefault origin = iota
	byEnvironment
	byFlag
)

func newSettings(environment []string) *settings {
	s := &settings{flags: flag.NewFlagSet("", flag.ContinueOnError), variables: map[string]string{}}
	s.flags.SetOutput(io.Discard)
	for _, line := range environment {
		if name, value, _ := strings.Cut(line, "="); strings.HasPrefix(name, environmentPrefix) && value != "" {
			s.variables[name] = value
		}
	}
	s.log.declare(s)
	return s
}

// variable returns the environment variable of a setting.
func variable(name string) string {
	return environmentPrefix + strings.ToUpper(strings.ReplaceAll(name, "-", "_"))
}

// declare adds a setting.
func (s *settings) declare(value flag.Value, name, usage string) *setting {
	s.flags.Var(value, name, usage)
	return s.noted(name, usage)
}

// noted adds a setting without declaring its flag.
func (s *settings) noted(name, usage string) *setting {
	added := &setting{name: name, usage: usage}
	s.all = append(s.all, added)
	return added
}

// read sets the settings from flags and variables.
func (s *settings) read(args []string) error {
	if err := s.refuseSecrets(args); err != nil {
		return err
	}
	err := s.flags.Parse(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return err
	case err != nil:
		return refuse("%w", err)
	case s.flags.NArg() > 0:
		return refuse("%q is not a setting; settings begin with --", s.flags.Arg(0))
	}
	s.flags.Visit(func(f *flag.Flag) { s.find(f.Name).given = byFlag })
	var errs []error
	for _, setting := range s.all {
		value, there := s.variables[variable(setting.name)]
		if !there || setting.given == byFlag {
			continue
		}
		setting.given = byEnvironment
		if err := s.flags.Set(setting.name, value); err != nil {
			errs = append(errs, refuse("%s is %q: %w", variable(setting.name), value, err))
		}
	}
	for _, setting := range s.all {
		if setting.secret != nil {
			errs = append(errs, setting.secret.read(s.variables))
		}
	}
	return errors.Join(errs...)
}

// find returns the setting of a name, or an empty one.
func (s *settings) find(name string) *setting {
	i := slices.IndexFunc(s.all, func(one *setting) bool { return one.name == name })
	if i < 0 {
		return &setting{name: name}
	}
	return s.all[i]
}

// refuseSecrets refuses a secret as a flag, before package flag can print it in an error.
func (s *settings) refuseSecrets(args []string) error {
	for _, arg := range args {
		name, _, _ := strings.Cut(strings.TrimLeft(arg, "-"), "=")
		for _, setting := range s.all {
			if setting.secret != nil && setting.secret.name == name && strings.HasPrefix(arg, "-") {
				return refuse("--%s would be visible to everybody on this machine; set %s, or --%s to a file that has it",
					name, variable(name), setting.name)
			}
		}
	}
	return nil
}

// unknown returns the variables with this program's prefix that are no settings.
func (s *settings) unknown() (names []string) {
	known := map[string]bool{}
	for _, setting := range s.all {
		known[variable(setting.name)] = true
		if setting.secret != nil {
			known[variable(setting.secret.name)] = true
		}
	}
	for name := range s.variables {
		if !known[name] {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// print lists the settings as text.
func (s *settings) print(w io.Writer) {
	for _, row := range s.rows() {
		_, _ = fmt.Fprintf(w, "\n  --%s, %s", row.flag, row.variable)
		if row.byDefault != "" {
			_, _ = fmt.Fprintf(w, ", default %s", row.byDefault)
		}
		_, _ = fmt.Fprintf(w, "\n      %s\n", strings.ReplaceAll(row.meaning, "`", ""))
	}
}

// row is the description of a setting.
type row struct{ flag, variable, byDefault, meaning string }

func (s *settings) rows() (rows []row) {
	for _, setting := range s.all {
		r := row{setting.name, variable(setting.name), s.flags.Lookup(setting.name).DefValue, setting.usage}
		if setting.secret != nil {
			r.meaning += "; or the value itself in " + variable(setting.secret.name)
		}
		rows = append(rows, r)
	}
	return rows
}

// list is the value of a setting with several texts, separated by commas or given as several flags.
type list []string

func (l *list) String() string { return strings.Join(*l, ",") }

// Set accepts any text. Its error would be printed with the text, which may be a URL with a
// password.
func (l *list) Set(text string) error {
	for _, value := range strings.Split(text, ",") {
		*l = append(*l, strings.TrimSpace(value))
	}
	return nil
}

// choice is the value of a setting that must be one of some words.
type choice struct {
	value string
	of    []string
}

func (c *choice) String() string { return c.value }

func (c *choice) Set(text string) error {
	if !slices.Contains(c.of, text) {
		return fmt.Errorf("it must be one of %s", strings.Join(c.of, ", "))
	}
	c.value = text
	return nil
}

// secret is the value of a setting that must not be a flag.
type secret struct {
	name  string // of the setting, from which its variable is named
	file  string
	value string
}

// secret declares a secret, with a setting for its file.
func (s *settings) secret(name, what string) *secret {
	sec := &secret{name: name}
	s.flags.StringVar(&sec.file, name+"-file", "", "")
	s.noted(name+"-file", "file with "+what).secret = sec
	return sec
}

// read sets the value from the file if one is set, else from the variable.
func (s *secret) read(variables map[string]string) (err error) {
	s.value = variables[variable(s.name)]
	if s.file == "" {
		return nil
	}
	if s.value, err = readSecret(s.file); err != nil {
		return refuse("--%s-file: %w", s.name, err)
	}
	return nil
}

func (s *settings) text(name, byDefault, usage string) *string {
	s.noted(name, usage)
	return s.flags.String(name, byDefault, "")
}

func (s *settings) number(name string, byDefault int, usage string) *int {
	s.noted(name, usage)
	return s.flags.Int(name, byDefault, "")
}

func (s *settings) duration(name string, byDefault time.Duration, usage string) *time.Duration {
	s.noted(name, usage)
	return s.flags.Duration(name, byDefault, "")
}

func (s *settings) yes(name string, byDefault bool, usage string) *bool {
	s.noted(name, usage)
	return s.flags.Bool(name, byDefault, "")
}

func (s *settings) list(name, usage string) *list {
	l := &list{}
	s.declare(l, name, usage)
	return l
}

func (s *settings) choice(name, byDefault, usage string, of ...string) *choice {
	c := &choice{byDefault, of}
	s.declare(c, name, usage)
	return c
}
