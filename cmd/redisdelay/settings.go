package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
)

const environmentPrefix = "REDISDELAY_"

// settings are the settings of the program: those of the connection, which all commands have, and
// those of the command relay. Each is a flag, an environment variable of the same name (--health is
// REDISDELAY_HEALTH), and a line of the configuration file (health = :8080). A flag overrides the
// variable, which overrides the file, which overrides the default. Empty ones are ignored.
//
// Secrets are not flags, because everybody on the machine can see a program's arguments. A secret
// is an environment variable, a line of the file, or the content of a file that a setting names.
type settings struct {
	flags     *pflag.FlagSet // gets the settings that are declared next
	all       []*setting
	variables map[string]string // of the environment, and of the configuration file after resolve
	home      string            // directory of the user's configuration files, "" if unknown
	config    *string
	log       logSettings
	mismatch  *mismatch // of a connection by these settings
}

// setting is one setting: a flag, a variable and a line of the file.
type setting struct {
	name, usage string
	flag        *pflag.Flag
	secret      *secret // the secret whose file this names; nil for other settings
	given       origin
}

// origin is where the value of a setting comes from.
type origin int

const (
	byDefault     origin = iota
	byEnvironment        // or the configuration file
	byFlag
)

// newSettings returns settings that are declared in the flags. It declares those of the log and of
// the configuration file.
func newSettings(environment []string, flags *pflag.FlagSet) *settings {
	s := &settings{flags: flags, variables: map[string]string{}, mismatch: newMismatch()}
	others := map[string]string{}
	for _, line := range environment {
		name, value, _ := strings.Cut(line, "=")
		if value == "" {
			continue
		}
		if strings.HasPrefix(name, environmentPrefix) {
			s.variables[name] = value
		} else {
			others[name] = value
		}
	}
	if s.home = others["XDG_CONFIG_HOME"]; s.home == "" && others["HOME"] != "" {
		s.home = filepath.Join(others["HOME"], ".config")
	}
	s.config = s.text("config", "", "file with settings, a `name = value` a line; default `redisdelay.conf` in the user's directory of configuration, if it is there")
	s.log.declare(s)
	return s
}

// variable returns the environment variable of a setting.
func variable(name string) string {
	return environmentPrefix + strings.ToUpper(strings.ReplaceAll(name, "-", "_"))
}

// declare adds a setting.
func (s *settings) declare(value pflag.Value, name, usage string) *setting {
	s.flags.Var(value, name, "")
	return s.noted(name, usage)
}

// noted adds a setting whose flag is declared.
func (s *settings) noted(name, usage string) *setting {
	added := &setting{name: name, usage: usage, flag: s.flags.Lookup(name)}
	s.all = append(s.all, added)
	return added
}

// resolve sets the settings that are among the flags of a command, which are parsed, from the
// environment and from the configuration file.
func (s *settings) resolve(flags *pflag.FlagSet) error {
	errs := []error{s.set(flags, s.find("config"))}
	errs = append(errs, s.readFile())
	for _, one := range s.all {
		errs = append(errs, s.set(flags, one))
	}
	return errors.Join(errs...)
}

// set sets one setting from the environment, unless there is a flag for it.
func (s *settings) set(flags *pflag.FlagSet, one *setting) error {
	if flags.Lookup(one.name) != one.flag {
		return nil // another command's
	}
	if one.flag.Changed && one.given == byDefault {
		one.given = byFlag
	}
	if value, there := s.variables[variable(one.name)]; there && one.given == byDefault {
		one.given = byEnvironment
		if err := flags.Set(one.name, value); err != nil {
			return refuse("%s: %w", variable(one.name), err)
		}
	}
	if one.secret != nil {
		return one.secret.read(s.variables)
	}
	return nil
}

// readFile reads the configuration file into the variables that the environment does not have.
func (s *settings) readFile() error {
	file := *s.config
	if file == "" && s.home != "" {
		file = filepath.Join(s.home, "redisdelay.conf")
	}
	if file == "" {
		return nil
	}
	text, err := os.ReadFile(file)
	if *s.config == "" && errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return refuse("--config: %w", err)
	}
	known, hasSecret := s.known(), false
	for i, line := range strings.Split(string(text), "\n") {
		if line = strings.TrimSpace(line); line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		name, value, ok := strings.Cut(line, "=")
		name, value = variable(strings.TrimSpace(name)), strings.TrimSpace(value)
		if !ok || !known[name] || name == variable("config") {
			return refuse("%s, line %d: it must be the name of a setting, such as redis, an = and its value", file, i+1)
		}
		hasSecret = hasSecret || s.isSecret(name, value)
		s.variables[name] = cmp.Or(s.variables[name], value)
		if s.variables[name] == "" {
			delete(s.variables, name)
		}
	}
	if hasSecret {
		if err := onlyOwn(file); err != nil {
			return refuse("%w", err)
		}
	}
	return nil
}

// isSecret tells whether a variable of the configuration file has a secret: that of a secret, or a
// URL with a password.
func (s *settings) isSecret(name, value string) bool {
	if scheme, rest, url := strings.Cut(value, "://"); url && scheme != "" && strings.Contains(rest, "@") {
		return true
	}
	return slices.ContainsFunc(s.all, func(one *setting) bool { return one.secret != nil && variable(one.secret.name) == name })
}

// onlyOwn returns an error if others than the owner of a file with a secret can read or change it.
// The group may read a file of root: those who cannot own their files get them so. Kubernetes
// mounts secrets that way for programs that are not root's, and systemd its credentials.
func onlyOwn(file string) error {
	info, err := os.Stat(file)
	if err != nil {
		return err
	}
	if info.Mode().IsRegular() && info.Mode().Perm()&othersRights(info) != 0 {
		return fmt.Errorf("%s has a secret, and others can read it: chmod 600", file)
	}
	return nil
}

// find returns the setting of a name, or an empty one.
func (s *settings) find(name string) *setting {
	i := slices.IndexFunc(s.all, func(one *setting) bool { return one.name == name })
	if i < 0 {
		return &setting{name: name}
	}
	return s.all[i]
}

// refuseSecrets refuses a secret as a flag, before an error can print it.
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

// known returns the variables of all settings and secrets.
func (s *settings) known() map[string]bool {
	known := map[string]bool{}
	for _, setting := range s.all {
		known[variable(setting.name)] = true
		if setting.secret != nil {
			known[variable(setting.secret.name)] = true
		}
	}
	return known
}

// unknown returns the variables with this program's prefix that are no settings.
func (s *settings) unknown() (names []string) {
	known := s.known()
	for name := range s.variables {
		if !known[name] {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// print lists the settings that are among the flags as text.
func (s *settings) print(w io.Writer, flags *pflag.FlagSet) {
	for _, row := range s.rows(flags) {
		_, _ = fmt.Fprintf(w, "\n  --%s, %s", row.flag, row.variable)
		if row.byDefault != "" {
			_, _ = fmt.Fprintf(w, ", default %s", row.byDefault)
		}
		_, _ = fmt.Fprintf(w, "\n      %s\n", strings.ReplaceAll(row.meaning, "`", ""))
	}
}

// row is the description of a setting.
type row struct{ flag, variable, byDefault, meaning string }

// rows describes the settings that are among the flags.
func (s *settings) rows(flags *pflag.FlagSet) (rows []row) {
	for _, setting := range s.all {
		if flags.Lookup(setting.name) != setting.flag {
			continue
		}
		r := row{setting.name, variable(setting.name), setting.flag.DefValue, setting.usage}
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

// Type is the name of the type.
func (l *list) Type() string { return "texts" }

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

// Type is the name of the type.
func (c *choice) Type() string { return "word" }

// Set accepts one of the words.
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
	value := s.flags.String(name, byDefault, "")
	s.noted(name, usage)
	return value
}

func (s *settings) number(name string, byDefault int, usage string) *int {
	value := s.flags.Int(name, byDefault, "")
	s.noted(name, usage)
	return value
}

func (s *settings) duration(name string, byDefault time.Duration, usage string) *time.Duration {
	value := s.flags.Duration(name, byDefault, "")
	s.noted(name, usage)
	return value
}

func (s *settings) yes(name string, byDefault bool, usage string) *bool {
	value := s.flags.Bool(name, byDefault, "")
	s.noted(name, usage)
	return value
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

// readSecret returns the content of a file without the line break at its end.
func readSecret(file string) (string, error) {
	text, err := os.ReadFile(file)
	if err == nil {
		err = onlyOwn(file)
	}
	if err != nil {
		return "", err
	}
	secret := strings.TrimRight(string(text), "\r\n")
	if secret == "" {
		return "", fmt.Errorf("%s is empty", file)
	}
	return secret, nil
}
