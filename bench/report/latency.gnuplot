# Latency, from the median to the 99th percentile, one bar for each contender.
#
# Variables: data (file: row, label, p50, p99, role), rows, label_width, lowest
# and highest of the axis, logarithmic (1 or 0).

set terminal svg size 720, 64 + 30 * rows font 'sans,13' noenhanced
set datafile separator "\t"
set encoding utf8
unset key
unset colorbox
set palette defined (1 '#010103', 2 '#010104', 3 '#010105')
set cbrange [1:3]
set border 0
set lmargin label_width
set rmargin 16
set tmargin 0.6
set tics textcolor rgb '#010101' scale 0
set xtics nomirror format '%g' textcolor rgb '#010106'
set grid xtics linetype 1 linewidth 1 linecolor rgb '#010102'
set xrange [lowest:highest]
if (logarithmic) {
	set logscale x
}
set yrange [rows + 0.5:0.5]
set xlabel 'µs, from the median to the 99th percentile' textcolor rgb '#010106' offset 0, 0.3
text(value) = sprintf(value < 1000 ? '%.1f' : '%.0f', value)
plot data using 3:1:3:4:($1 - 0.2):($1 + 0.2):5:ytic(2) with boxxyerror \
		fillstyle solid 1.0 noborder linecolor palette, \
	data using 3:1 with points pointtype 7 pointsize 0.9 linecolor rgb '#010101', \
	data using 4:1:(text($3).' – '.text($4)) with labels left offset 0.9, 0 \
		textcolor rgb '#010101'
