//go:build unix

package main

import (
	"io/fs"
	"syscall"
)

// othersRights are the permissions that a file with a secret must not have.
func othersRights(info fs.FileInfo) fs.FileMode {
	if of, ok := info.Sys().(*syscall.Stat_t); ok && of.Uid == 0 {
		return 0o037
	}
	return 0o077
}
