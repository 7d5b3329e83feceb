package main

import (
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strings"
)

// apidiff is of the last commit of golang.org/x/exp that Go 1.25 compiles.
const apidiff = "golang.org/x/exp/cmd/apidiff@v0.0.0-20260112195511-716be5621a96"

// compareAPI compares the exported API of each module with that of the last release. CHANGELOG.md
// has to name what breaks.
func (r *release) compareAPI() (string, error) {
	if r.last == "" {
		return "nothing to compare with: no release is tagged", nil
	}
	before := filepath.Join(r.scratch, "before")
	if _, err := r.git("worktree", "add", "-q", "--detach", before, r.last); err != nil {
		return "", err
	}
	var broken []change
	for _, dir := range modules {
		if _, err := r.git("rev-parse", "-q", "--verify", "refs/tags/"+tag(dir, r.last)); err != nil || dir == tool { // it exports nothing
			continue
		}
		changes, err := r.incompatible(filepath.Join(before, dir), filepath.Join(r.clone, dir), r.module(dir))
		if err != nil {
			return "", err
		}
		broken = append(broken, changes...)
	}
	changelog, err := os.ReadFile(filepath.Join(r.clone, "CHANGELOG.md"))
	if err != nil {
		return "", err
	}
	if err := r.allowed(broken, string(changelog)); err != nil {
		return "", err
	}
	return fmt.Sprintf("incompatible changes since %s: %d, each named in CHANGELOG.md", r.last, len(broken)), nil
}

// change is an incompatible change of the exported API.
type change struct {
	text  string   // what apidiff says, such as "./admin.(*Admin).Purge: removed"
	names []string // how CHANGELOG.md may name what changed, such as Admin.Purge
}

// incompatible returns the incompatible changes of a module's exported API. Programs, examples and
// tests of the library's module are no API.
func (r *release) incompatible(before, after, module string) (changes []change, err error) {
	files := make([]string, 2)
	for i, dir := range []string{before, after} {
		files[i] = filepath.Join(r.scratch, fmt.Sprintf("api%d", i))
		if _, err := output(dir, []string{"GOWORK=off"}, "go", "run", apidiff, "-m", "-w", files[i], module); err != nil {
			return nil, err
		}
	}
	text, err := output(r.scratch, nil, "go", "run", apidiff, "-m", "-incompatible", files[0], files[1])
	for line := range strings.Lines(text) {
		found := changed(strings.TrimPrefix(strings.TrimSpace(line), "- "), module)
		if found.names != nil {
			changes = append(changes, found)
		}
	}
	return changes, err
}

// changed reads a line of apidiff about a module. There are no names if the change is of no API.
func changed(text, module string) change {
	symbol, _, _ := strings.Cut(text, ": ")
	directory := ""
	if removed, whole := strings.CutPrefix(symbol, "package "); whole {
		directory, symbol = strings.TrimPrefix(strings.TrimPrefix(removed, module), "/"), ""
	} else if below, ok := strings.CutPrefix(symbol, "./"); ok { // ./admin.(*Admin).Purge
		dir, name := path.Split(below)
		name, symbol, _ = strings.Cut(name, ".")
		directory = dir + name
	}
	switch first, _, _ := strings.Cut(directory, "/"); first {
	case "benchmarks", "examples", "scripts", "tests":
		return change{text: text}
	}
	pkg := path.Base(path.Join(module, directory)) // the library's is named by what follows the last hyphen
	pkg = pkg[strings.LastIndex(pkg, "-")+1:]
	symbol, _, _ = strings.Cut(symbol, ",") // a part that has no name
	symbol = strings.NewReplacer("(", "", ")", "", "*", "").Replace(symbol)
	switch {
	case symbol == "":
		return change{text, []string{pkg}}
	case strings.Contains(symbol, "."), directory == "":
		return change{text, []string{symbol, pkg + "." + symbol}}
	default:
		return change{text, []string{pkg + "." + symbol}}
	}
}

// allowed returns an error if the version or the changelog does not tell of changes that break
// users' programs.
func (r *release) allowed(broken []change, changelog string) error {
	_, section, _ := strings.Cut(changelog, "\n## ["+strings.TrimPrefix(r.version, "v")+"]")
	section, _, _ = strings.Cut(section, "\n## ")
	var errs []error
	for _, c := range broken {
		if !names(section, c.names) {
			errs = append(errs, fmt.Errorf("CHANGELOG.md does not name `%s`, which breaks programs: %s", c.names[0], c.text))
		}
	}
	if is, was := parsed(r.version), parsed(r.last); len(broken) > 0 && is[0] == was[0] && (is[0] > 0 || is[1] == was[1]) {
		next := fmt.Sprintf("v%d.0.0", was[0]+1)
		if was[0] == 0 {
			next = fmt.Sprintf("v0.%d.0", was[1]+1)
		}
		errs = append(errs, fmt.Errorf("%s breaks programs that use %s, so it has to be %s", r.version, r.last, next))
	}
	return errors.Join(errs...)
}
