//go:build !linux

package redistest

import "io/fs"

// inode is only used by StartWithDisk, which needs Linux.
func inode(fs.FileInfo) uint64 { return 0 }
