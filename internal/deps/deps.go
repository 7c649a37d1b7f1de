//go:build deps

// Package deps pins what the first packages will import, until they do.
package deps
