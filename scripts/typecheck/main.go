// Command typecheck checks the types of packages and of their tests for other systems. Unlike go
// vet it reads the sources of what they import, and compiles nothing, so a system takes seconds.
//
//	typecheck -C DIRECTORY SYSTEM/ARCHITECTURE... -- PATTERN...
package main

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"

	"golang.org/x/tools/go/packages"
)

func main() {
	dir := flag.String("C", ".", "directory of the module")
	flag.Parse()
	end := slices.Index(flag.Args(), "--")
	if end < 1 || end == flag.NArg()-1 {
		fmt.Fprintln(os.Stderr, "usage: typecheck -C DIRECTORY SYSTEM/ARCHITECTURE... -- PATTERN...")
		os.Exit(2)
	}
	failed := false
	for _, system := range flag.Args()[:end] {
		found, err := check(*dir, system, flag.Args()[end+1:])
		if err != nil {
			found = append(found, err.Error())
		}
		for _, text := range found {
			fmt.Fprintf(os.Stderr, "%s: %s\n", system, text)
		}
		failed = failed || len(found) > 0
	}
	if failed {
		os.Exit(1)
	}
}

// check returns what is wrong with packages on a system, such as linux/386.
func check(dir, system string, patterns []string) (wrong []string, err error) {
	goos, goarch, ok := strings.Cut(system, "/")
	if !ok {
		return nil, fmt.Errorf("want SYSTEM/ARCHITECTURE, such as linux/386")
	}
	config := &packages.Config{
		Dir: dir, Tests: true, Env: append(os.Environ(), "GOOS="+goos, "GOARCH="+goarch, "CGO_ENABLED=0"),
		Mode: packages.NeedName | packages.NeedCompiledGoFiles | packages.NeedImports | packages.NeedDeps | packages.NeedTypes |
			packages.NeedSyntax | packages.NeedTypesInfo | packages.NeedTypesSizes | packages.NeedModule,
	}
	found, err := packages.Load(config, patterns...)
	if err != nil {
		return nil, err
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("no package is named by %s", strings.Join(patterns, " "))
	}
	packages.Visit(found, nil, func(p *packages.Package) {
		for _, e := range p.Errors {
			wrong = append(wrong, e.Error())
		}
	})
	slices.Sort(wrong)
	return slices.Compact(wrong), nil
}
