//go:build race

package e2e

// The dcol under test looks for data races where its tests do.
var buildFlags = []string{"-race"}
