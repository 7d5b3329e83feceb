package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"
)

// The table in docs/relay.md is generated from the settings.
func TestSettingsAreDescribed(t *testing.T) {
	t.Parallel()
	a, err := parsed(nil)
	require.NoError(t, err)
	var table strings.Builder
	table.WriteString("| Flag | Variable | Default | Meaning |\n|---|---|---|---|\n")
	for _, r := range a.settings.rows(a.relay.Flags()) {
		byDefault := r.byDefault
		if byDefault != "" {
			byDefault = "`" + byDefault + "`"
		}
		fmt.Fprintf(&table, "| `--%s` | `%s` | %s | %s |\n", r.flag, r.variable, byDefault, r.meaning)
	}
	requireSection(t, "../../docs/relay.md", "<!-- settings:begin -->\n", "<!-- settings:end -->", table.String())
}

// Commands of the tool that documents name exist, and so do their flags.
func TestCommandsInDocumentsExist(t *testing.T) {
	t.Parallel()
	a, err := parsed(nil)
	require.NoError(t, err)
	a.root.InitDefaultHelpCmd()
	a.root.InitDefaultCompletionCmd()
	flags := map[string]bool{"help": true}
	var collect func(*cobra.Command)
	collect = func(cmd *cobra.Command) {
		cmd.InheritedFlags()
		cmd.Flags().VisitAll(func(f *pflag.Flag) { flags[f.Name] = true })
		for _, sub := range cmd.Commands() {
			collect(sub)
		}
	}
	collect(a.root)

	commands := regexp.MustCompile("(?m)(?:`|^ *(?:\\$ )?|\\| )redisdelay ([a-z][^`\n|>&]*)")
	named, tests := 0, testSource(t)
	documents, err := filepath.Glob("../../docs/*.md")
	require.NoError(t, err)
	for _, file := range append(documents, "../../README.md", "../../CHANGELOG.md") {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		for _, match := range commands.FindAllStringSubmatch(string(text), -1) {
			named++
			words := strings.Fields(match[1])
			cmd, rest, err := a.root.Find(words)
			require.NoError(t, err, "%s: redisdelay %s", file, match[1])
			if !cmd.HasSubCommands() {
				_, path, _ := strings.Cut(cmd.CommandPath(), " ")
				asCalled := strings.ReplaceAll(regexp.QuoteMeta(path), " ", `(?: |", ?")`)
				called := regexp.MustCompile(`["` + "`" + ` ]` + asCalled + `[" ` + "`" + `]`)
				if !called.MatchString(tests) {
					t.Errorf("no test runs redisdelay %s, which %s names", path, file)
				}
			}
			if cmd.HasSubCommands() && len(rest) > 0 && !strings.Contains(cmd.Use, "TOPIC") {
				require.Regexp(t, "^[-A-Z]", rest[0], "%s: redisdelay %s", file, match[1])
			}
			for _, word := range words {
				if name, _, _ := strings.Cut(strings.TrimPrefix(word, "--"), "="); strings.HasPrefix(word, "--") {
					require.NotNil(t, cmd.Flag(name), "%s: redisdelay %s has no flag %s", file, match[1], word)
				}
			}
		}
		for _, match := range regexp.MustCompile("`--([a-z][a-z-]*)[ `]").FindAllStringSubmatch(string(text), -1) {
			require.True(t, flags[match[1]], "%s: no command has the flag --%s", file, match[1])
		}
	}
	require.Greater(t, named, 30)
}

// testSource returns the text of the tests of this package, but for this file.
func testSource(t *testing.T) string {
	t.Helper()
	files, err := filepath.Glob("*_test.go")
	require.NoError(t, err)
	var source strings.Builder
	for _, file := range files {
		if file != "docs_test.go" {
			text, err := os.ReadFile(file)
			require.NoError(t, err)
			source.Write(text)
		}
	}
	return source.String()
}

// updates makes tests write their golden files and sections of documents anew: UPDATE=1 go test.
var updates = os.Getenv("UPDATE") == "1"

// requireSection requires that a document has this text between two marks.
func requireSection(t *testing.T, file, begin, end, want string) {
	t.Helper()
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	before, rest, found := strings.Cut(string(text), begin)
	section, after, ends := strings.Cut(rest, end)
	require.True(t, found && ends, "%s lacks %s or %s", file, begin, end)
	if updates && section != want {
		require.NoError(t, os.WriteFile(file, []byte(before+begin+want+end+after), 0o644))
		return
	}
	if section != want {
		t.Errorf("%s, behind %s, is not as it should be; UPDATE=1 writes it. It should be\n%s", file, strings.TrimSpace(begin), want)
	}
}
