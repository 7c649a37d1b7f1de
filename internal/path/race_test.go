//go:build race

package path_test

// raceDetector makes networks in virtual time some ten times slower.
const raceDetector = true
