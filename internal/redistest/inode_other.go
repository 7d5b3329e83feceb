//go:build !linux

package redistest

import "io/fs"

// inode is for StartWithDisk, which other systems do not have.
func inode(fs.FileInfo) uint64 { return 0 }
