# What all clients reach together, and the latency of a tensor, over the number of clients.
#
# Variables: data (file: clients, then for each series the sum in Gb/s, the latency in ms and
# the latency of the straight line through it), series (their names, quoted), roles (their
# colours), count.

set terminal svg size 720, 340 font 'sans,13' noenhanced
set datafile separator "\t"
set datafile missing "-"
set encoding utf8
set border 0
set tics textcolor rgb '#010106' scale 0
set grid ytics linetype 1 linewidth 1 linecolor rgb '#010102'
set key above left horizontal reverse Left textcolor rgb '#010101' samplen 1.6
set xlabel 'clients' textcolor rgb '#010106'
set xrange [0:*]
set yrange [0:*]
sum_of(number) = 3 * number - 1
set multiplot layout 1, 2
set ylabel 'sum, Gb/s' textcolor rgb '#010106'
plot for [number = 1:count] data using 1:(column(sum_of(number))) with linespoints \
	linewidth 2.2 pointtype 7 pointsize 0.55 linecolor rgb word(roles, number) \
	title word(series, number)
set ylabel 'median latency, ms; dashed: straight line' textcolor rgb '#010106'
plot for [number = 1:count] data using 1:(column(sum_of(number) + 1)) with points \
	pointtype 7 pointsize 0.55 linecolor rgb word(roles, number) title word(series, number), \
	for [number = 1:count] data using 1:(column(sum_of(number) + 2)) with lines linewidth 1.4 \
	dashtype (4, 3) linecolor rgb word(roles, number) notitle
unset multiplot
