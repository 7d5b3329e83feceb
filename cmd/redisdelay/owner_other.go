//go:build !unix

package main

import "io/fs"

// othersRights are no permissions, because this system has no such ones.
func othersRights(fs.FileInfo) fs.FileMode { return 0 }
