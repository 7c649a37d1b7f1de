//go:build race

package path_test

// raceDetector is set with the race detector, which makes networks in virtual time about ten times slower.
const raceDetector = true
