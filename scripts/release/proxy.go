package main

import (
	"encoding/json"
	"errors"
	"io"
	"path/filepath"
	"strings"
)

// downloaded is what the go command tells of a module that it downloaded.
type downloaded struct{ Path, Version, Sum, GoModSum, Error string }

// download has the go command make modules of the clone's tags, as a proxy on the internet does. A
// module cache of that name in scratch gets them. Its directory of downloads is a proxy.
func (r *release) download(name string, dirs []string) (found []downloaded, err error) {
	args := []string{"mod", "download", "-json"}
	for _, dir := range dirs {
		args = append(args, r.module(dir)+"@"+r.version)
	}
	// The name of the repository leads git to the clone.
	text, err := output(r.scratch, []string{
		"GOMODCACHE=" + filepath.Join(r.scratch, name), "GOFLAGS=-modcacherw", "GOWORK=off", "GOPROXY=direct", "GONOSUMDB=" + r.path,
		"GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=url.file://" + r.clone + ".insteadOf", "GIT_CONFIG_VALUE_0=https://" + r.path,
	}, "go", args...)
	if err != nil {
		return nil, err
	}
	for decoder := json.NewDecoder(strings.NewReader(text)); ; {
		var m downloaded
		err := decoder.Decode(&m)
		if errors.Is(err, io.EOF) {
			return found, nil
		}
		if err != nil {
			return nil, err
		}
		found = append(found, m)
	}
}

// strangers returns the settings of the go command of somebody who has nothing of this repository:
// the modules of the tags come from a file proxy, and all others from where they come from on this
// machine.
func (r *release) strangers() ([]string, error) {
	known, err := output(r.scratch, nil, "go", "env", "GOMODCACHE")
	if err != nil {
		return nil, err
	}
	elsewhere, err := output(r.scratch, nil, "go", "env", "GOPROXY")
	if err != nil {
		return nil, err
	}
	// A version without a tag is nowhere else: nobody asks the repository on the internet.
	elsewhere = strings.TrimRight(strings.TrimSuffix(elsewhere, "direct"), ",|")
	return []string{
		"GOPROXY=" + fileProxy(filepath.Join(r.scratch, "tags")) + "," + strings.TrimSuffix(fileProxy(known)+","+elsewhere, ","),
		"GOMODCACHE=" + filepath.Join(r.scratch, "modules"), "GOBIN=" + filepath.Join(r.scratch, "bin"), "GONOSUMDB=" + r.path,
		// With -trimpath, the build cache keeps what other modules compile to, wherever scratch is.
		"GOFLAGS=-modcacherw -trimpath", "GOWORK=off",
	}, nil
}

// fileProxy returns the address of a module cache as a proxy.
func fileProxy(cache string) string {
	return "file://" + filepath.ToSlash(filepath.Join(cache, "cache", "download"))
}
